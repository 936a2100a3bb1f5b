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
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> delta: array<f32>;
@group(0) @binding(3) var<storage, read> d_out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> params: Params;

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
    let key = 4u * block;
    let keys = vec4(key, key + 1u, key + 2u, key + 3u);
    let k_rows = q_at + inner + 3u * inner * min(keys, last);
    let v_rows = k_rows + inner;
    let k = within(block_of_qkv(k_rows, columns), first);
    let v = within(block_of_qkv(v_rows, columns), first);
    var d_k = Block();
    var d_v = Block();
    for (var row = select(0u, key, params.causal != 0u); row <= last.x; row += 4u) {
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
        let at = pair * params.tokens + near;
        let level = vec4(lse[at.x], lse[at.y], lse[at.z], lse[at.w]);
        let share = vec4(delta[at.x], delta[at.y], delta[at.z], delta[at.w]);
        // The first key that each row does not see.
        let end = select(vec4(params.tokens), rows + 1u, params.causal != 0u);
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

fn quad_of_d_out(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(d_out[at.x], d_out[at.y], d_out[at.z], d_out[at.w]);
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

fn block_of_d_out(rows: vec4<u32>, at: Columns) -> Block {
    var block = Block();
    block.c0 = quad_of_d_out(rows + at.low.x);
    block.c1 = quad_of_d_out(rows + at.low.y);
    block.c2 = quad_of_d_out(rows + at.low.z);
    block.c3 = quad_of_d_out(rows + at.low.w);
    if QUADS == 8u {
        block.c4 = quad_of_d_out(rows + at.high.x);
        block.c5 = quad_of_d_out(rows + at.high.y);
        block.c6 = quad_of_d_out(rows + at.high.z);
        block.c7 = quad_of_d_out(rows + at.high.w);
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
    d_qkv[at.x + column] = x[0];
    if rows.y < params.tokens {
        d_qkv[at.y + column] = x[1];
    }
    if rows.z < params.tokens {
        d_qkv[at.z + column] = x[2];
    }
    if rows.w < params.tokens {
        d_qkv[at.w + column] = x[3];
    }
}
