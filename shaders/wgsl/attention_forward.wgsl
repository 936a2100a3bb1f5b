// out = softmax(q kᵀ / sqrt(d) + mask) v per head, lse = its row sums' logarithms (Dao et al., 2022)
//
// qkv [batch, tokens, 3, heads, d], as one product makes it: queries, keys, values side by side; out
// [batch, tokens, heads, d]; lse [batch, heads, tokens]. d = 4 width. The mask hides later tokens if
// causal. Nothing of size tokens x tokens is stored.
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

//#include "attention_loops"
//#include "scaled_rows"

struct Params {
    //#include "attention_params"
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> lse: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

const HIDDEN = -1e30;

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
    let blocks = (params.tokens + 3u) / 4u;
    if block >= blocks {
        return;
    }
    let row = 4u * (blocks - 1u - block);
    let rows = vec4(row, row + 1u, row + 2u, row + 3u);
    let last = vec4(params.tokens - 1u);
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let inner = params.heads * params.width;
    let q_at = batch * params.tokens * 3u * inner + head * params.width;
    let q_rows = q_at + 3u * inner * min(rows, last);
    // The columns of this chunk: the first one, and how many there are.
    let first = 8u * chunk;
    let count = min(8u, params.width - first);
    // The last key that each row sees.
    let limit = select(last, min(rows, last), params.causal != 0u);
    let q = block_of_qkv(q_rows + first, count);
    var top = vec4(HIDDEN);
    var sum = vec4(0.0);
    var acc = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let k_rows = q_at + inner + 3u * inner * min(keys, last);
        var s = times(block_of_qkv(k_rows + first, count), q);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad_of_qkv(k_rows + column)) * quad_of_qkv(q_rows + column);
        }
        s *= params.scale;
        s[0] = select(s[0], vec4(HIDDEN), keys > vec4(limit.x));
        s[1] = select(s[1], vec4(HIDDEN), keys > vec4(limit.y));
        s[2] = select(s[2], vec4(HIDDEN), keys > vec4(limit.z));
        s[3] = select(s[3], vec4(HIDDEN), keys > vec4(limit.w));
        let t = transpose(s);
        let higher = max(top, max(max(t[0], t[1]), max(t[2], t[3])));
        let fade = exp(top - higher);
        top = higher;
        let p = mat4x4<f32>(exp(s[0] - top.x), exp(s[1] - top.y), exp(s[2] - top.z), exp(s[3] - top.w));
        sum = sum * fade + vec4(1.0) * p;
        let v = block_of_qkv(k_rows + inner + first, count);
        acc.c0 = scaled_rows(acc.c0, fade) + v.c0 * p;
        acc.c1 = scaled_rows(acc.c1, fade) + v.c1 * p;
        acc.c2 = scaled_rows(acc.c2, fade) + v.c2 * p;
        acc.c3 = scaled_rows(acc.c3, fade) + v.c3 * p;
        acc.c4 = scaled_rows(acc.c4, fade) + v.c4 * p;
        acc.c5 = scaled_rows(acc.c5, fade) + v.c5 * p;
        acc.c6 = scaled_rows(acc.c6, fade) + v.c6 * p;
        acc.c7 = scaled_rows(acc.c7, fade) + v.c7 * p;
    }
    let out_at = (batch * params.tokens + row) * inner + head * params.width + first;
    for (var i = 0u; i < count; i++) {
        let x = scaled_rows(column_of(acc, i), 1.0 / sum);
        for (var r = 0u; r < 4u; r++) {
            if row + r <= last.x {
                out[out_at + r * inner + i] = x[r];
            }
        }
    }
    let level = top + log(sum);
    for (var r = 0u; r < 4u; r++) {
        if row + r <= last.x && chunk == 0u {
            lse[pair * params.tokens + row + r] = level[r];
        }
    }
}
