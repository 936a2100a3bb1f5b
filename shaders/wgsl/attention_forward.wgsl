// out = D(softmax(scale q kᵀ + mask)) v per head, lse = the logarithms of its rows' sums (Dao et al., 2022)
//
// q, out [batch, heads, queries, d], k, v [batch, heads / group, keys, d] with any steps between sequences, heads and
// tokens; d = 4 width. So q, k and v may lie side by side in one buffer, as one product makes them. lse [batch, heads,
// queries]. If causal, query i sees keys up to i. The variants `masked` add mask [batch, heads, queries, keys], whose
// axes may be shared, and D drops weights and scales the others. Nothing of size queries x keys is stored.
// Grid: one row of units, 8 to a workgroup; a unit makes 4 queries' rows of 32 of d's columns. Heads
// are next to each other in the order of units, so that a workgroup's units end together; the rows
// with most keys come first.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: keys ascending in steps of 4; what is summed is scaled down whenever a row's
// maximum rises.
// How it got fast: (1) queries and sums in registers as 4 x 4 blocks, 4 keys a step: 64 vec4 loads
// per 1024 products at d = 32; (2) columns loaded in loops: as fast, and compiled in a quarter of the
// time. On llvmpipe a load is what takes time: attention_forward_tiled is three times slower there.
// Wider heads compute scores once per 32 columns.

//#include "attention_params"
//#include "attention_loops"
//#include "attention_masked"
//#include "scaled_rows"

// Whether there may be a mask or dropout.
const MASKED = false; //#masked, masked_narrow: const MASKED = true;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> mask: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
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
    let row = 4u * (blocks - 1u - block);
    let rows = vec4(row, row + 1u, row + 2u, row + 3u);
    let near = min(rows, vec4(params.queries - 1u));
    let last = vec4(params.keys - 1u);
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let q_rows = begin_of(params.q.x, params.q.y, params.q.z, batch, head) + params.q.w * near;
    let k_at = begin_of(params.k.x, params.k.y, params.k.z, batch, head / params.group);
    let v_at = begin_of(params.v.x, params.v.y, params.v.z, batch, head / params.group);
    // The columns of this chunk: the first one, and how many there are.
    let first = 8u * chunk;
    let count = min(8u, params.width - first);
    // The last key that each row sees.
    let limit = select(last, min(near, last), is_causal());
    let q = block_of_q(q_rows + first, count);
    var top = vec4<f32>(LOWEST);
    var sum = vec4(0.0);
    var acc = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let k_rows = k_at + params.k.w * min(keys, last);
        var s = times(block_of_k(k_rows + first, count), q);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad_of_k(k_rows + column)) * quad_of_q(q_rows + column);
        }
        s *= params.scale;
        if MASKED {
            s += bias_of(batch, head, near, key);
        }
        s[0] = select(s[0], vec4(HIDDEN), keys > vec4(limit.x));
        s[1] = select(s[1], vec4(HIDDEN), keys > vec4(limit.y));
        s[2] = select(s[2], vec4(HIDDEN), keys > vec4(limit.z));
        s[3] = select(s[3], vec4(HIDDEN), keys > vec4(limit.w));
        let t = transpose(s);
        let higher = max(top, max(max(t[0], t[1]), max(t[2], t[3])));
        let fade = exp(top - higher);
        top = higher;
        var p = mat4x4<f32>(exp(s[0] - top.x), exp(s[1] - top.y), exp(s[2] - top.z), exp(s[3] - top.w));
        sum = sum * fade + vec4(1.0) * p;
        if MASKED {
            p = by_place(p, kept_of(pair * params.queries + near, key));
        }
        let v = block_of_v(v_at + params.v.w * min(keys, last) + first, count);
        acc.c0 = scaled_rows(acc.c0, fade) + v.c0 * p;
        acc.c1 = scaled_rows(acc.c1, fade) + v.c1 * p;
        acc.c2 = scaled_rows(acc.c2, fade) + v.c2 * p;
        acc.c3 = scaled_rows(acc.c3, fade) + v.c3 * p;
        acc.c4 = scaled_rows(acc.c4, fade) + v.c4 * p;
        acc.c5 = scaled_rows(acc.c5, fade) + v.c5 * p;
        acc.c6 = scaled_rows(acc.c6, fade) + v.c6 * p;
        acc.c7 = scaled_rows(acc.c7, fade) + v.c7 * p;
    }
    let out_at = begin_of(params.out.x, params.out.y, params.out.z, batch, head) + params.out.w * row + first;
    let share = 1.0 / divisor_of(sum);
    for (var i = 0u; i < count; i++) {
        let x = scaled_rows(column_of(acc, i), share);
        for (var r = 0u; r < 4u; r++) {
            if row + r < params.queries {
                out[out_at + r * params.out.w + i] = x[r];
            }
        }
    }
    let level = level_of(top, sum);
    for (var r = 0u; r < 4u; r++) {
        if row + r < params.queries && chunk == 0u {
            lse[pair * params.queries + row + r] = level[r];
        }
    }
}
