// The slopes of attention_forward: from those of out to those of q, k and v (Dao, 2023)
//
// q, k, v, out, lse and mask as in attention_forward; d_out as out; d_qkv holds d_q, d_k and d_v where the parameters say,
// with steps of their own. With p = exp(scale q kᵀ + mask - lse): d_v = D(p)ᵀ d_out; with
// d_s = p (D(d_out vᵀ) - rowsum(d_out out)): d_q = scale d_s k, d_k = scale d_sᵀ q. Heads that share keys and values are
// added up. Nothing of size queries x keys is stored.
// Grid: two kinds of workgroups, of 8 units; the first params.each are of the first kind. There a unit makes 4 rows of
// d_q and walks over keys; in the others it makes 4 rows of d_k and d_v and walks over the queries of all heads that
// share them; 32 of d's columns each. Units are ordered as in attention_forward.
// Workgroup memory: none, and so no barriers; nor are there atomics.
// Accumulation order: keys (d_q) or heads and their queries (d_k, d_v) ascending in steps of 4.
// How it got fast: (1) both halves in one launch, sums in registers as 4 x 4 blocks. Scores are
// computed twice, which is cheaper than storing them. (2) Columns loaded in loops: a little faster, and
// compiled by llvmpipe in a tenth of the time. Wider heads compute scores once per 32 columns.

//#include "attention_params"
//#include "attention_loops"
//#include "attention_masked"
//#include "attention_d_out"
//#include "attention_row_sums"

// Whether there may be a mask or dropout.
const MASKED = false; //#masked, masked_narrow: const MASKED = true;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> mask: array<f32>;
@group(0) @binding(4) var<storage, read> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> lse: array<f32>;
@group(0) @binding(6) var<storage, read> d_out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> d_qkv: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> params: Params;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group.y * groups.x + group.x;
    if number < params.each {
        let unit = number * 8u + lane;
        let blocks = (params.queries + 3u) / 4u;
        let block = unit / (params.pairs * params.chunks);
        if block < blocks {
            queries(unit % params.pairs, 4u * (blocks - 1u - block), unit / params.pairs % params.chunks);
        }
    } else {
        let unit = (number - params.each) * 8u + lane;
        let pairs = params.pairs / params.group;
        let key = 4u * (unit / (pairs * params.chunks));
        if key < params.keys {
            keys(unit % pairs, key, unit / pairs % params.chunks);
        }
    }
}

// Four rows of d_q.
fn queries(pair: u32, row: u32, chunk: u32) {
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let last = vec4(params.keys - 1u);
    let rows = vec4(row, row + 1u, row + 2u, row + 3u);
    let near = min(rows, vec4(params.queries - 1u));
    let q_rows = begin_of(params.q.x, params.q.y, params.q.z, batch, head) + params.q.w * near;
    let out_rows = begin_of(params.out.x, params.out.y, params.out.z, batch, head) + params.out.w * near;
    let o_rows = begin_of(params.d_out.x, params.d_out.y, params.d_out.z, batch, head) + params.d_out.w * near;
    let k_at = begin_of(params.k.x, params.k.y, params.k.z, batch, head / params.group);
    let v_at = begin_of(params.v.x, params.v.y, params.v.z, batch, head / params.group);
    let first = 8u * chunk;
    let count = min(8u, params.width - first);
    let limit = select(last, min(near, last), is_causal());
    let q = block_of_q(q_rows + first, count);
    let d_o = block_of_d_out(o_rows + first, count);
    var delta = vec4(0.0);
    for (var i = 0u; i < params.width; i++) {
        delta += row_sums(quad_of_d_out(o_rows + i), quad_of_out(out_rows + i));
    }
    let level = lse_of(pair * params.queries + near);
    var d_q = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let k_rows = k_at + params.k.w * min(keys, last);
        let v_rows = v_at + params.v.w * min(keys, last);
        let k = block_of_k(k_rows + first, count);
        var s = times(k, q);
        var d_p = times(block_of_v(v_rows + first, count), d_o);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            s += transpose(quad_of_k(k_rows + column)) * quad_of_q(q_rows + column);
            d_p += transpose(quad_of_v(v_rows + column)) * quad_of_d_out(o_rows + column);
        }
        s *= params.scale;
        if MASKED {
            s += bias_of(batch, head, near, key);
            d_p = by_place(d_p, kept_of(pair * params.queries + near, key));
        }
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
    let at = begin_of(params.d_q.x, params.d_q.y, params.d_q.z, batch, head) + first;
    store(at, params.d_q.w, params.queries, row, count, d_q, params.scale);
}

// Four rows of d_k and d_v.
fn keys(pair: u32, key: u32, chunk: u32) {
    let shared_heads = params.heads / params.group;
    let batch = pair / shared_heads;
    let key_head = pair % shared_heads;
    let last = vec4(params.keys - 1u);
    let last_query = vec4(params.queries - 1u);
    let keys = vec4(key, key + 1u, key + 2u, key + 3u);
    let k_rows = begin_of(params.k.x, params.k.y, params.k.z, batch, key_head) + params.k.w * min(keys, last);
    let v_rows = begin_of(params.v.x, params.v.y, params.v.z, batch, key_head) + params.v.w * min(keys, last);
    let first = 8u * chunk;
    let count = min(8u, params.width - first);
    let k = block_of_k(k_rows + first, count);
    let v = block_of_v(v_rows + first, count);
    var d_k = Block();
    var d_v = Block();
    // All heads in one loop: one inside another compiles more slowly.
    let first_row = select(0u, key, is_causal());
    let end_head = (key_head + 1u) * params.group;
    var row = first_row;
    var head = select(key_head * params.group, end_head, first_row >= params.queries);
    while head < end_head {
        let rows = vec4(row, row + 1u, row + 2u, row + 3u);
        let near = min(rows, last_query);
        let q_rows = begin_of(params.q.x, params.q.y, params.q.z, batch, head) + params.q.w * near;
        let out_rows = begin_of(params.out.x, params.out.y, params.out.z, batch, head) + params.out.w * near;
        let o_rows = begin_of(params.d_out.x, params.d_out.y, params.d_out.z, batch, head) + params.d_out.w * near;
        let q = block_of_q(q_rows + first, count);
        var d_o = Block();
        var delta = vec4(0.0);
        for (var i = 0u; i < count; i++) {
            let x = quad_of_d_out(o_rows + first + i);
            put(&d_o, i, x);
            delta += row_sums(x, quad_of_out(out_rows + first + i));
        }
        var s = times(q, k);
        var d_p = times(d_o, v);
        for (var i = count; i < params.width * WIDE_HEADS; i++) {
            let column = (first + i) % params.width;
            let x = quad_of_d_out(o_rows + column);
            s += transpose(quad_of_q(q_rows + column)) * quad_of_k(k_rows + column);
            d_p += transpose(x) * quad_of_v(v_rows + column);
            delta += row_sums(x, quad_of_out(out_rows + column));
        }
        s *= params.scale;
        let query = (batch * params.heads + head) * params.queries + near;
        if MASKED {
            s += transpose(bias_of(batch, head, near, key));
        }
        let level = lse_of(query);
        // The first key that each row does not see.
        let end = select(vec4(params.keys), rows + 1u, is_causal());
        let seen = select(vec4(0u), end, rows <= last_query);
        var p = mat4x4<f32>(
            select(vec4(0.0), exp(s[0] - level), seen > vec4(keys.x)),
            select(vec4(0.0), exp(s[1] - level), seen > vec4(keys.y)),
            select(vec4(0.0), exp(s[2] - level), seen > vec4(keys.z)),
            select(vec4(0.0), exp(s[3] - level), seen > vec4(keys.w)),
        );
        if MASKED {
            let kept = transpose(kept_of(query, key));
            d_v = plus(d_v, d_o, by_place(p, kept));
            d_p = by_place(d_p, kept);
        } else {
            d_v = plus(d_v, d_o, p);
        }
        let d_s = mat4x4<f32>(
            p[0] * (d_p[0] - delta),
            p[1] * (d_p[1] - delta),
            p[2] * (d_p[2] - delta),
            p[3] * (d_p[3] - delta),
        );
        d_k = plus(d_k, q, d_s);
        row += 4u;
        if row >= params.queries {
            row = first_row;
            head += 1u;
        }
    }
    let k_at = begin_of(params.d_k.x, params.d_k.y, params.d_k.z, batch, key_head) + first;
    let v_at = begin_of(params.d_v.x, params.d_v.y, params.d_v.z, batch, key_head) + first;
    store(k_at, params.d_k.w, params.keys, key, count, d_k, params.scale);
    store(v_at, params.d_v.w, params.keys, key, count, d_v, 1.0);
}

// The rows of a block that are below `end`.
fn store(at: u32, step: u32, end: u32, row: u32, count: u32, block: Block, scale: f32) {
    for (var i = 0u; i < count; i++) {
        let x = column_of(block, i) * scale;
        for (var r = 0u; r < 4u; r++) {
            if row + r < end {
                d_qkv[at + (row + r) * step + i] = x[r];
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
