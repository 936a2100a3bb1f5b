// The slopes of attention_forward to its keys and values (Dao, 2023)
//
// qkv and d_qkv [batch, tokens, 3, heads, d], d_out [batch, tokens, heads, d], lse and delta (of
// attention_backward_queries) [batch, heads, tokens]; d = 4 width. With p = exp(scale q kᵀ - lse):
// d_v = pᵀ d_out; with d_s = p (d_out vᵀ - delta): d_k = scale d_sᵀ q. Of d_qkv only these are
// written. Nothing of size tokens x tokens is stored.
// Grid: as attention_forward_unrolled, with keys in place of queries; the keys that most queries see come first.
// Workgroup memory: none, and so no barriers; nor are there atomics.
// Accumulation order: queries ascending in steps of 4.
// How it got fast: as attention_forward_unrolled. Scores are computed here and in attention_backward_queries,
// which is cheaper than storing them.

//#include "attention_unrolled_slopes"

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> delta: array<f32>;
@group(0) @binding(3) var<storage, read> d_out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> params: Params;

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
    let key = 4u * block;
    let keys = vec4(key, key + 1u, key + 2u, key + 3u);
    let k_rows = q_at + inner + 3u * inner * min(keys, last);
    let v_rows = k_rows + inner;
    let k = within(block_of_qkv(k_rows, columns), first);
    let v = within(block_of_qkv(v_rows, columns), first);
    var d_k = Block();
    var d_v = Block();
    for (var row = select(0u, key, is_causal()); row <= last.x; row += 4u) {
        let rows = vec4(row, row + 1u, row + 2u, row + 3u);
        let near = min(rows, last);
        let q_rows = q_at + 3u * inner * near;
        let out_rows = out_at + inner * near;
        let q = block_of_qkv(q_rows, columns);
        let d_o = block_of_d_out(out_rows, columns);
        var s = times(q, k);
        var d_p = times(d_o, v);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad_of_qkv(q_rows + column)) * quad_of_qkv(k_rows + column);
            d_p += transpose(quad_of_d_out(out_rows + column)) * quad_of_qkv(v_rows + column);
        }
        s *= params.scale;
        let at = pair * params.queries + near;
        let level = vec4(lse[at.x], lse[at.y], lse[at.z], lse[at.w]);
        let share = vec4(delta[at.x], delta[at.y], delta[at.z], delta[at.w]);
        // The first key that each row does not see.
        let end = select(vec4(params.queries), rows + 1u, is_causal());
        let seen = select(vec4(0u), end, rows <= last);
        let p = mat4x4<f32>(
            select(vec4(0.0), exp(s[0] - level), seen > vec4(keys.x)),
            select(vec4(0.0), exp(s[1] - level), seen > vec4(keys.y)),
            select(vec4(0.0), exp(s[2] - level), seen > vec4(keys.z)),
            select(vec4(0.0), exp(s[3] - level), seen > vec4(keys.w)),
        );
        d_v = plus(d_v, d_o, p);
        let d_s = mat4x4<f32>(
            p[0] * (d_p[0] - share),
            p[1] * (d_p[1] - share),
            p[2] * (d_p[2] - share),
            p[3] * (d_p[3] - share),
        );
        d_k = plus(d_k, q, params.scale * d_s);
    }
    store(k_rows, keys, first, d_k);
    store(v_rows, keys, first, d_v);
}
