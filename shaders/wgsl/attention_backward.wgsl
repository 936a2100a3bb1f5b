// The slopes of attention_forward: from those of out to those of q, k and v (Dao, 2023)
//
// qkv and d_qkv [batch, tokens, 3, heads, d], out and d_out [batch, tokens, heads, d], lse [batch,
// heads, tokens]; d = 4 width. With p = exp(scale q kᵀ - lse): d_v = pᵀ d_out; with
// d_s = p (d_out vᵀ - rowsum(d_out out)): d_q = scale d_s k, d_k = scale d_sᵀ q. Nothing of size
// tokens x tokens is stored.
// Grid: two halves of as many workgroups each, of 8 units. In the first half a unit makes 4 rows of
// d_q and walks over keys; in the second one it makes 4 rows of d_k and d_v and walks over queries;
// 32 of d's columns each. Units are ordered as in attention_forward.
// Workgroup memory: none, and so no barriers; nor are there atomics.
// Accumulation order: keys (d_q) or queries (d_k, d_v) ascending in steps of 4.
// How it got fast: (1) both halves in one launch, sums in registers as 4 x 4 blocks. Scores are
// computed twice, which is cheaper than storing them. (2) Columns loaded in loops: a little faster, and
// compiled by llvmpipe in a tenth of the time. Wider heads compute scores once per 32 columns.

//#include "attention_loops"
//#include "attention_d_out"
//#include "attention_row_sums"

struct Params {
    //#include "attention_params"
    half: u32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> d_out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> params: Params;

// Where a head's numbers begin: in qkv its queries, keys and values; in out; in lse.
struct Head {
    q: u32,
    k: u32,
    v: u32,
    out: u32,
    lse: u32,
}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group.y * groups.x + group.x;
    let half = number / params.half;
    let unit = number % params.half * 8u + lane;
    let pair = unit % params.pairs;
    let chunk = unit / params.pairs % params.chunks;
    let block = unit / (params.pairs * params.chunks);
    let blocks = (params.tokens + 3u) / 4u;
    if block >= blocks || half > 1u {
        return;
    }
    let batch = pair / params.heads;
    let inner = params.heads * params.width;
    let at = pair % params.heads * params.width;
    let q = batch * params.tokens * 3u * inner + at;
    let out = batch * params.tokens * inner + at;
    let head = Head(q, q + inner, q + 2u * inner, out, pair * params.tokens);
    if half == 0u {
        queries(head, 4u * (blocks - 1u - block), chunk);
    } else {
        keys(head, 4u * block, chunk);
    }
}

// Four rows of d_q.
fn queries(head: Head, row: u32, chunk: u32) {
    let last = vec4(params.tokens - 1u);
    let rows = vec4(row, row + 1u, row + 2u, row + 3u);
    let near = min(rows, last);
    let inner = params.heads * params.width;
    let q_rows = head.q + 3u * inner * near;
    let o_rows = head.out + inner * near;
    let first = 8u * chunk;
    let count = min(8u, params.width - first);
    let limit = select(last, near, params.causal != 0u);
    let q = block_of_qkv(q_rows + first, count);
    let d_o = block_of_d_out(o_rows + first, count);
    var delta = vec4(0.0);
    for (var i = 0u; i < params.width; i++) {
        delta += row_sums(quad_of_d_out(o_rows + i), quad_of_out(o_rows + i));
    }
    let level = lse_of(head.lse + near);
    var d_q = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let step = 3u * inner * min(keys, last);
        let k = block_of_qkv(head.k + step + first, count);
        var s = times(k, q);
        var d_p = times(block_of_qkv(head.v + step + first, count), d_o);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad_of_qkv(head.k + step + column)) * quad_of_qkv(q_rows + column);
            d_p += transpose(quad_of_qkv(head.v + step + column)) * quad_of_d_out(o_rows + column);
        }
        s *= params.scale;
        let p0 = select(exp(s[0] - level.x), vec4(0.0), keys > vec4(limit.x));
        let p1 = select(exp(s[1] - level.y), vec4(0.0), keys > vec4(limit.y));
        let p2 = select(exp(s[2] - level.z), vec4(0.0), keys > vec4(limit.z));
        let p3 = select(exp(s[3] - level.w), vec4(0.0), keys > vec4(limit.w));
        let d_s = mat4x4<f32>(
            p0 * (d_p[0] - delta.x),
            p1 * (d_p[1] - delta.y),
            p2 * (d_p[2] - delta.z),
            p3 * (d_p[3] - delta.w),
        );
        d_q = plus(d_q, k, d_s);
    }
    store(head.q + first, row, count, d_q, params.scale);
}

// Four rows of d_k and d_v.
fn keys(head: Head, key: u32, chunk: u32) {
    let last = vec4(params.tokens - 1u);
    let keys = vec4(key, key + 1u, key + 2u, key + 3u);
    let inner = params.heads * params.width;
    let k_rows = head.k + 3u * inner * min(keys, last);
    let v_rows = k_rows + inner;
    let first = 8u * chunk;
    let count = min(8u, params.width - first);
    let k = block_of_qkv(k_rows + first, count);
    let v = block_of_qkv(v_rows + first, count);
    var d_k = Block();
    var d_v = Block();
    for (var row = select(0u, key, params.causal != 0u); row <= last.x; row += 4u) {
        let rows = vec4(row, row + 1u, row + 2u, row + 3u);
        let near = min(rows, last);
        let q_rows = head.q + 3u * inner * near;
        let o_rows = head.out + inner * near;
        let q = block_of_qkv(q_rows + first, count);
        var d_o = Block();
        var delta = vec4(0.0);
        for (var i = 0u; i < count; i++) {
            let x = quad_of_d_out(o_rows + first + i);
            put(&d_o, i, x);
            delta += row_sums(x, quad_of_out(o_rows + first + i));
        }
        var s = times(q, k);
        var d_p = times(d_o, v);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            let x = quad_of_d_out(o_rows + column);
            s += transpose(quad_of_qkv(q_rows + column)) * quad_of_qkv(k_rows + column);
            d_p += transpose(x) * quad_of_qkv(v_rows + column);
            delta += row_sums(x, quad_of_out(o_rows + column));
        }
        s *= params.scale;
        let level = lse_of(head.lse + near);
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
            p[0] * (d_p[0] - delta),
            p[1] * (d_p[1] - delta),
            p[2] * (d_p[2] - delta),
            p[3] * (d_p[3] - delta),
        );
        d_k = plus(d_k, q, d_s);
    }
    store(head.k + first, key, count, d_k, params.scale);
    store(head.v + first, key, count, d_v, 1.0);
}

fn store(at: u32, row: u32, count: u32, block: Block, scale: f32) {
    let stride = 3u * params.heads * params.width;
    for (var i = 0u; i < count; i++) {
        let x = column_of(block, i) * scale;
        for (var r = 0u; r < 4u; r++) {
            if row + r < params.tokens {
                d_qkv[at + (row + r) * stride + i] = x[r];
            }
        }
    }
}

fn lse_of(at: vec4<u32>) -> vec4<f32> {
    return vec4(lse[at.x], lse[at.y], lse[at.z], lse[at.w]);
}

// `count` columns of four rows; the others are 0.
fn block_of_d_out(rows: vec4<u32>, count: u32) -> Block {
    var block = Block();
    for (var i = 0u; i < count; i++) {
        put(&block, i, quad_of_d_out(rows + i));
    }
    return block;
}

// Adds to each row of the sum the rows of x, weighted by the row's column of w.
fn plus(sum: Block, x: Block, w: mat4x4<f32>) -> Block {
    return Block(
        sum.c0 + x.c0 * w,
        sum.c1 + x.c1 * w,
        sum.c2 + x.c2 * w,
        sum.c3 + x.c3 * w,
        sum.c4 + x.c4 * w,
        sum.c5 + x.c5 * w,
        sum.c6 + x.c6 * w,
        sum.c7 + x.c7 * w,
    );
}
