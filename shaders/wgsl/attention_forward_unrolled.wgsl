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

// Columns of a unit in vec4: 8, or 4.
const QUADS = 8u;
// 0 if all heads have at most that many columns.
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

// QUADS times 4 columns of 4 rows: column r of each matrix is row r.
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

// Where a unit's columns lie in a row. Those beyond the head repeat its last one.
struct Columns {
    low: vec4<u32>,
    high: vec4<u32>,
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
    let last = vec4(params.tokens - 1u);
    let inner = params.heads * params.width;
    let batch = pair / params.heads;
    let head = pair % params.heads * params.width;
    let q_at = batch * params.tokens * 3u * inner + head;
    let out_at = batch * params.tokens * inner + head;
    // The columns of this chunk: the first one, and how many there are.
    let first = QUADS * chunk;
    let count = min(QUADS, params.width - first);
    let columns = columns_from(first);
    let row = 4u * (blocks - 1u - block);
    let rows = vec4(row, row + 1u, row + 2u, row + 3u);
    let q_rows = q_at + 3u * inner * min(rows, last);
    // The last key that each row sees.
    let limit = select(last, min(rows, last), params.causal != 0u);
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
            lse[pair * params.tokens + row + r] = level[r];
        }
    }
}

fn columns_from(first: u32) -> Columns {
    let low = vec4(first, first + 1u, first + 2u, first + 3u);
    let last = vec4(params.width - 1u);
    return Columns(min(low, last), min(low + 4u, last));
}

// With 0 in columns beyond the head.
fn within(x: Block, first: u32) -> Block {
    let low = vec4(first, first + 1u, first + 2u, first + 3u);
    let width = vec4(params.width);
    let a = select(vec4(0.0), vec4(1.0), low < width);
    let b = select(vec4(0.0), vec4(1.0), low + 4u < width);
    return Block(
        x.c0 * a.x,
        x.c1 * a.y,
        x.c2 * a.z,
        x.c3 * a.w,
        x.c4 * b.x,
        x.c5 * b.y,
        x.c6 * b.z,
        x.c7 * b.w,
    );
}

fn quad_of_qkv(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
}

fn block_of_qkv(rows: vec4<u32>, at: Columns) -> Block {
    var block = Block();
    block.c0 = quad_of_qkv(rows + at.low.x);
    block.c1 = quad_of_qkv(rows + at.low.y);
    block.c2 = quad_of_qkv(rows + at.low.z);
    block.c3 = quad_of_qkv(rows + at.low.w);
    if QUADS == 8u {
        block.c4 = quad_of_qkv(rows + at.high.x);
        block.c5 = quad_of_qkv(rows + at.high.y);
        block.c6 = quad_of_qkv(rows + at.high.z);
        block.c7 = quad_of_qkv(rows + at.high.w);
    }
    return block;
}

// Products of the rows of x and the rows of y; a column for each row of y.
fn times(x: Block, y: Block) -> mat4x4<f32> {
    var s = transpose(x.c0) * y.c0;
    s += transpose(x.c1) * y.c1;
    s += transpose(x.c2) * y.c2;
    s += transpose(x.c3) * y.c3;
    if QUADS == 8u {
        s += transpose(x.c4) * y.c4;
        s += transpose(x.c5) * y.c5;
        s += transpose(x.c6) * y.c6;
        s += transpose(x.c7) * y.c7;
    }
    return s;
}

// Adds to each row of the sum the rows of x, weighted by the row's column of w.
fn plus(sum: Block, x: Block, w: mat4x4<f32>) -> Block {
    var next = sum;
    next.c0 += x.c0 * w;
    next.c1 += x.c1 * w;
    next.c2 += x.c2 * w;
    next.c3 += x.c3 * w;
    if QUADS == 8u {
        next.c4 += x.c4 * w;
        next.c5 += x.c5 * w;
        next.c6 += x.c6 * w;
        next.c7 += x.c7 * w;
    }
    return next;
}

// Each row times its factor.
fn scaled(x: Block, factor: vec4<f32>) -> Block {
    var next = x;
    next.c0 = scaled_quad(x.c0, factor);
    next.c1 = scaled_quad(x.c1, factor);
    next.c2 = scaled_quad(x.c2, factor);
    next.c3 = scaled_quad(x.c3, factor);
    if QUADS == 8u {
        next.c4 = scaled_quad(x.c4, factor);
        next.c5 = scaled_quad(x.c5, factor);
        next.c6 = scaled_quad(x.c6, factor);
        next.c7 = scaled_quad(x.c7, factor);
    }
    return next;
}

fn scaled_quad(x: mat4x4<f32>, factor: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x[0] * factor.x, x[1] * factor.y, x[2] * factor.z, x[3] * factor.w);
}

// Writes four rows, as many as there are, of the columns that there are.
fn store(at: vec4<u32>, rows: vec4<u32>, first: u32, x: Block) {
    store_quad(at, rows, first, x.c0);
    store_quad(at, rows, first + 1u, x.c1);
    store_quad(at, rows, first + 2u, x.c2);
    store_quad(at, rows, first + 3u, x.c3);
    if QUADS == 8u {
        store_quad(at, rows, first + 4u, x.c4);
        store_quad(at, rows, first + 5u, x.c5);
        store_quad(at, rows, first + 6u, x.c6);
        store_quad(at, rows, first + 7u, x.c7);
    }
}

fn store_quad(at: vec4<u32>, rows: vec4<u32>, column: u32, x: mat4x4<f32>) {
    if column >= params.width {
        return;
    }
    out[at.x + column] = x[0];
    if rows.y < params.tokens {
        out[at.y + column] = x[1];
    }
    if rows.z < params.tokens {
        out[at.z + column] = x[2];
    }
    if rows.w < params.tokens {
        out[at.w + column] = x[3];
    }
}
