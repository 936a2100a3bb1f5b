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

// 0 if all heads have at most 32 columns.
const WIDE_HEADS = 1u;

struct Params {
    tokens: u32,
    heads: u32,
    width: u32,
    pairs: u32,
    chunks: u32,
    causal: u32,
    scale: f32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> lse: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

const HIDDEN = -1e30;

// 32 columns of 4 rows: column r of each matrix is row r.
struct Block {
    c0: mat4x4<f32>,
    c1: mat4x4<f32>,
    c2: mat4x4<f32>,
    c3: mat4x4<f32>,
    c4: mat4x4<f32>,
    c5: mat4x4<f32>,
    c6: mat4x4<f32>,
    c7: mat4x4<f32>,
}

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
    let q = block_of(q_rows + first, count);
    var top = vec4(HIDDEN);
    var sum = vec4(0.0);
    var acc = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let k_rows = q_at + inner + 3u * inner * min(keys, last);
        var s = times(block_of(k_rows + first, count), q);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad(k_rows + column)) * quad(q_rows + column);
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
        let v = block_of(k_rows + inner + first, count);
        acc.c0 = faded(acc.c0, fade) + v.c0 * p;
        acc.c1 = faded(acc.c1, fade) + v.c1 * p;
        acc.c2 = faded(acc.c2, fade) + v.c2 * p;
        acc.c3 = faded(acc.c3, fade) + v.c3 * p;
        acc.c4 = faded(acc.c4, fade) + v.c4 * p;
        acc.c5 = faded(acc.c5, fade) + v.c5 * p;
        acc.c6 = faded(acc.c6, fade) + v.c6 * p;
        acc.c7 = faded(acc.c7, fade) + v.c7 * p;
    }
    let out_at = (batch * params.tokens + row) * inner + head * params.width + first;
    for (var i = 0u; i < count; i++) {
        let x = faded(column_of(acc, i), 1.0 / sum);
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

fn quad(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
}

// `count` columns of four rows; the others are 0.
fn block_of(rows: vec4<u32>, count: u32) -> Block {
    var block = Block();
    for (var i = 0u; i < count; i++) {
        put(&block, i, quad(rows + i));
    }
    return block;
}

// Puts a matrix into a block. Written so, and not unrolled, the loops around it stay short.
fn put(block: ptr<function, Block>, column: u32, x: mat4x4<f32>) {
    if column == 0u {
        (*block).c0 = x;
    } else if column == 1u {
        (*block).c1 = x;
    } else if column == 2u {
        (*block).c2 = x;
    } else if column == 3u {
        (*block).c3 = x;
    } else if column == 4u {
        (*block).c4 = x;
    } else if column == 5u {
        (*block).c5 = x;
    } else if column == 6u {
        (*block).c6 = x;
    } else {
        (*block).c7 = x;
    }
}

fn column_of(block: Block, column: u32) -> mat4x4<f32> {
    var x = block.c0;
    if column == 1u {
        x = block.c1;
    } else if column == 2u {
        x = block.c2;
    } else if column == 3u {
        x = block.c3;
    } else if column == 4u {
        x = block.c4;
    } else if column == 5u {
        x = block.c5;
    } else if column == 6u {
        x = block.c6;
    } else if column == 7u {
        x = block.c7;
    }
    return x;
}

// Products of the rows of x and the rows of y; a column for each row of y.
fn times(x: Block, y: Block) -> mat4x4<f32> {
    var s = transpose(x.c0) * y.c0;
    s += transpose(x.c1) * y.c1;
    s += transpose(x.c2) * y.c2;
    s += transpose(x.c3) * y.c3;
    s += transpose(x.c4) * y.c4;
    s += transpose(x.c5) * y.c5;
    s += transpose(x.c6) * y.c6;
    s += transpose(x.c7) * y.c7;
    return s;
}

fn faded(m: mat4x4<f32>, fade: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(m[0] * fade.x, m[1] * fade.y, m[2] * fade.z, m[3] * fade.w);
}
