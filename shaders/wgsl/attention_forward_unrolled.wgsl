// out = softmax(q kᵀ / sqrt(d) + mask) v per head, lse = its row sums' logarithms (Dao et al., 2022)
//
// qkv [batch, tokens, 3, heads, d], as one product makes it: queries, keys, values side by side; out
// [batch, tokens, heads, d]; lse [batch, heads, tokens]. d = 4 width. The mask hides later tokens if
// causal. Nothing of size tokens x tokens is stored.
// Grid: one row of units, 8 to a workgroup; a unit makes 4 queries' rows of QUADS of a head's columns.
// Heads are next to each other in the order of units, so that a workgroup's units end together; the
// rows with most keys come first.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: keys ascending in steps of 4; what is summed is scaled down whenever a row's
// maximum rises.
// How it got fast, on SwiftShader: (1) attention_forward: heads of 16 columns took 18 ms of a step; (2) columns loaded
// without a loop. Branches skip nothing there, so a loop that puts a matrix into its place writes all
// places: 3.3 ms; (3) half as many columns for heads that have no more: 1.7 ms. Wider heads compute scores once
// per QUADS columns. llvmpipe takes twice as long to compile it, and is no faster in a step.

//#include "attention_unrolled"
//#include "scaled_rows"

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> lse: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

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
    let q_rows = q_at + 3u * inner * min(rows, last);
    // The last key that each row sees.
    let limit = select(last, min(rows, last), is_causal());
    let q = within(block_of_qkv(q_rows, columns), first);
    var top = vec4(HIDDEN);
    var sum = vec4(0.0);
    var acc = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let k_rows = q_at + inner + 3u * inner * min(keys, last);
        var s = times(block_of_qkv(k_rows, columns), q);
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
        acc = plus(scaled(acc, fade), block_of_qkv(k_rows + inner, columns), p);
    }
    store(out_at + inner * rows, rows, first, scaled(acc, 1.0 / sum));
    let level = top + log(sum);
    for (var r = 0u; r < 4u; r++) {
        if row + r <= last.x && chunk == 0u {
            lse[pair * params.queries + row + r] = level[r];
        }
    }
}

// Each row times its factor.
fn scaled(x: Block, factor: vec4<f32>) -> Block {
    var next = x;
    next.c0 = scaled_rows(x.c0, factor);
    next.c1 = scaled_rows(x.c1, factor);
    next.c2 = scaled_rows(x.c2, factor);
    next.c3 = scaled_rows(x.c3, factor);
    if QUADS == 8u {
        next.c4 = scaled_rows(x.c4, factor);
        next.c5 = scaled_rows(x.c5, factor);
        next.c6 = scaled_rows(x.c6, factor);
        next.c7 = scaled_rows(x.c7, factor);
    }
    return next;
}

fn store_quad(at: vec4<u32>, rows: vec4<u32>, column: u32, x: mat4x4<f32>) {
    if column >= params.width {
        return;
    }
    out[at.x + column] = x[0];
    if rows.y < params.queries {
        out[at.y + column] = x[1];
    }
    if rows.z < params.queries {
        out[at.z + column] = x[2];
    }
    if rows.w < params.queries {
        out[at.w + column] = x[3];
    }
}
