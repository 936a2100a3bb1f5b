// The slopes of attention_forward to its queries, and what those to keys and values need (Dao, 2023)
//
// qkv and d_qkv [batch, tokens, 3, heads, d], out and d_out [batch, tokens, heads, d], lse and delta
// [batch, heads, tokens]; d = 4 width. With p = exp(scale q kᵀ - lse) and delta = rowsum(d_out out):
// d_s = p (d_out vᵀ - delta), d_q = scale d_s k. Of d_qkv only d_q is written. Nothing of size
// tokens x tokens is stored.
// Grid: as attention_forward_unrolled.
// Workgroup memory: none, and so no barriers.
// Accumulation order: keys ascending in steps of 4.
// How it got fast: as attention_forward_unrolled; delta is made here once for attention_backward_keys, which
// would make it once per block of keys.

//#include "attention_unrolled_slopes"
//#include "attention_row_sums"

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> d_out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let unit = (group.y * groups.x + group.x) * 8u + lane;
    let pair = unit % params.pairs;
    let chunk = unit / params.pairs % params.chunks;
    let block = unit / (params.pairs * params.chunks);
    let blocks = (params.queries + 3u) / 4u;
    if block >= blocks {
        return;
    }
    let last = vec4(params.queries - 1u);
    let inner = params.heads * params.width;
    let batch = pair / params.heads;
    let head = pair % params.heads * params.width;
    let q_at = batch * params.queries * 3u * inner + head;
    let out_at = batch * params.queries * inner + head;
    // The columns of this chunk: the first one, and how many there are.
    let first = QUADS * chunk;
    let count = min(QUADS, params.width - first);
    let columns = columns_from(first);
    let row = 4u * (blocks - 1u - block);
    let rows = vec4(row, row + 1u, row + 2u, row + 3u);
    let near = min(rows, last);
    let q_rows = q_at + 3u * inner * near;
    let out_rows = out_at + inner * near;
    // The last key that each row sees.
    let limit = select(last, near, is_causal());
    let q = within(block_of_qkv(q_rows, columns), first);
    let d_o = within(block_of_d_out(out_rows, columns), first);
    var share = vec4(0.0);
    for (var i = 0u; i < params.width; i++) {
        share += row_sums(quad_of_d_out(out_rows + i), quad_of_out(out_rows + i));
    }
    let at = pair * params.queries + near;
    let level = vec4(lse[at.x], lse[at.y], lse[at.z], lse[at.w]);
    var d_q = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let k_rows = q_at + inner + 3u * inner * min(keys, last);
        let v_rows = k_rows + inner;
        var d_p = times(block_of_qkv(v_rows, columns), d_o);
        let k = block_of_qkv(k_rows, columns);
        var s = times(k, q);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad_of_qkv(k_rows + column)) * quad_of_qkv(q_rows + column);
            d_p += transpose(quad_of_qkv(v_rows + column)) * quad_of_d_out(out_rows + column);
        }
        s *= params.scale;
        let p0 = select(exp(s[0] - level.x), vec4(0.0), keys > vec4(limit.x));
        let p1 = select(exp(s[1] - level.y), vec4(0.0), keys > vec4(limit.y));
        let p2 = select(exp(s[2] - level.z), vec4(0.0), keys > vec4(limit.z));
        let p3 = select(exp(s[3] - level.w), vec4(0.0), keys > vec4(limit.w));
        let d_s = mat4x4<f32>(
            p0 * (d_p[0] - share.x),
            p1 * (d_p[1] - share.y),
            p2 * (d_p[2] - share.z),
            p3 * (d_p[3] - share.w),
        );
        d_q = plus(d_q, k, params.scale * d_s);
    }
    store(q_rows, rows, first, d_q);
    for (var r = 0u; r < 4u; r++) {
        if row + r <= last.x && chunk == 0u {
            delta[pair * params.queries + row + r] = share[r];
        }
    }
}
