// The slopes of attention_forward_tiled: from those of out to those of q, k and v (Dao, 2023)
//
// qkv and d_qkv [batch, tokens, 3, heads, d], out and d_out [batch, tokens, heads, d], lse [batch,
// heads, tokens]; d = 4 width. With p = exp(scale q kᵀ - lse): d_v = pᵀ d_out; with
// d_s = p (d_out vᵀ - rowsum(d_out out)): d_q = scale d_s k, d_k = scale d_sᵀ q. Nothing of size
// tokens x tokens is stored.
// Grid: two halves of as many workgroups each. One of the first half makes 32 rows of d_q and walks
// over keys; one of the second half makes 32 rows of d_k and d_v and walks over queries; 64 of d's
// columns each. An invocation makes 4 x 4 of the scores of 32 queries and 32 keys.
// Workgroup memory: 32 tokens' 32 columns twice, 32 x 32 weights, and 8 partial sums for each query:
// 13 KiB.
// Accumulation order: keys (d_q) or queries (d_k, d_v) ascending in steps of 32.
// How it got fast: (1) attention_backward, for CPUs that play a GPU; (2) this one shares what it loads
// among 64 invocations, which a GPU wants.

//#include "attention_tiles"

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

// Which of the numbers of tokens a tile takes: queries, keys or values of qkv, or d_out.
const QUERIES = 0u;
const KEYS = 1u;
const VALUES = 2u;
const D_OUT = 3u;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group.y * groups.x + group.x;
    let for_keys = number >= params.half;
    let unit = number % params.half;
    let pair = unit % params.pairs;
    let first = 16u * (unit / params.pairs % params.chunks);
    let block = unit / (params.pairs * params.chunks);
    let blocks = (params.tokens + 31u) / 32u;
    // Surplus groups walk over nothing and store nothing.
    let there = block < blocks && number < 2u * params.half;
    let near = min(block, blocks - 1u);
    // Those with most to do come first in either half.
    let base = 32u * select(blocks - 1u - near, near, for_keys);
    let causal = params.causal != 0u;
    let begin = select(0u, base, causal && for_keys);
    let stop = select(params.tokens, min(params.tokens, base + 32u), causal && !for_keys);
    let end = select(0u, stop, there);
    // This invocation's tokens: 4 whose slopes are made, 4 of those walked over.
    let x = 4u * (lane % 8u);
    let y = 4u * (lane / 8u);
    let mine = base + y + vec4(0u, 1u, 2u, 3u);
    let last = vec4(params.tokens - 1u);
    let wide = first + 8u < params.width;
    // rowsum(d_out out) and lse of the queries: mine, or else those walked over.
    var delta = vec4(0.0);
    var level = vec4(0.0);
    if !for_keys {
        deltas(pair, base, lane);
    }
    workgroupBarrier();
    if !for_keys {
        delta = gathered(y);
        level = lse_of(pair * params.tokens + min(mine, last));
    }
    var acc0 = mat4x4<f32>();
    var acc1 = mat4x4<f32>();
    var d_v0 = mat4x4<f32>();
    var d_v1 = mat4x4<f32>();
    for (var at = begin; at < end; at += 32u) {
        let others = at + x + vec4(0u, 1u, 2u, 3u);
        if for_keys {
            // Read only after the barriers of the products.
            deltas(pair, at, lane);
        }
        let s = products(pair, select(QUERIES, KEYS, for_keys), base, select(KEYS, QUERIES, for_keys), at, lane);
        let d_p =
            products(pair, select(D_OUT, VALUES, for_keys), base, select(VALUES, D_OUT, for_keys), at, lane);
        var p = mat4x4<f32>();
        var d_s = mat4x4<f32>();
        if for_keys {
            delta = gathered(x);
            level = lse_of(pair * params.tokens + min(others, last));
        }
        for (var i = 0u; i < 4u; i++) {
            let token = vec4(mine[i]);
            let query = select(token, others, for_keys);
            let key = select(others, token, for_keys);
            let limit = select(last, min(query, last), causal);
            let seen = (key <= limit) & (query <= last);
            let own_level = select(vec4(level[i]), level, for_keys);
            let own_delta = select(vec4(delta[i]), delta, for_keys);
            p[i] = select(vec4(0.0), exp(params.scale * s[i] - own_level), seen);
            d_s[i] = p[i] * (d_p[i] - own_delta);
        }
        put_weights(d_s, x, y);
        let source = select(KEYS, QUERIES, for_keys);
        acc0 += weighted(pair, source, at, first, lane);
        if wide {
            acc1 += weighted(pair, source, at, first + 8u, lane);
        }
        if for_keys {
            put_weights(p, x, y);
            d_v0 += weighted(pair, D_OUT, at, first, lane);
            if wide {
                d_v1 += weighted(pair, D_OUT, at, first + 8u, lane);
            }
        }
    }
    if there {
        let column = first + x / 4u;
        let kind = select(QUERIES, KEYS, for_keys);
        for (var i = 0u; i < 4u; i++) {
            store(pair, kind, mine[i], column, params.scale * acc0[i]);
            store(pair, kind, mine[i], column + 8u, params.scale * acc1[i]);
            if for_keys {
                store(pair, VALUES, mine[i], column, d_v0[i]);
                store(pair, VALUES, mine[i], column + 8u, d_v1[i]);
            }
        }
    }
}

// The rows of 32 tokens times those of 32 others; a column for each of this invocation's tokens.
fn products(pair: u32, kind: u32, row: u32, other_kind: u32, other: u32, lane: u32) -> mat4x4<f32> {
    let x = lane % 8u;
    let y = lane / 8u;
    var s = mat4x4<f32>();
    for (var column = 0u; column < params.width; column += 8u) {
        for (var i = 0u; i < 4u; i++) {
            let r = y + 8u * i;
            tile_a[8u * r + x] = element(pair, kind, row + r, column + x);
        }
        load_b(pair, other_kind, other, column, lane);
        workgroupBarrier();
        for (var t = 0u; t < 8u; t++) {
            s += transpose(quad_b(33u * x + t)) * quad_a(32u * y + t);
        }
        workgroupBarrier();
    }
    return s;
}

// The sum of 32 tokens' rows by weight: four columns of it for this invocation's tokens.
fn weighted(pair: u32, kind: u32, row: u32, column: u32, lane: u32) -> mat4x4<f32> {
    load_b(pair, kind, row, column, lane);
    workgroupBarrier();
    var sum = mat4x4<f32>();
    for (var t = 0u; t < 8u; t++) {
        sum += quad_b(33u * t + lane % 8u) * quad_w(32u * (lane / 8u) + t);
    }
    workgroupBarrier();
    return sum;
}

fn put_weights(p: mat4x4<f32>, x: u32, y: u32) {
    for (var i = 0u; i < 4u; i++) {
        weights[8u * (y + i) + x / 4u] = p[i];
    }
}

// Each query's rowsum(d_out out), in eight parts.
fn deltas(pair: u32, row: u32, lane: u32) {
    let inner = params.heads * params.width;
    let at = pair / params.heads * params.tokens * inner + pair % params.heads * params.width;
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        var sum = 0.0;
        if row + r < params.tokens {
            for (var column = lane % 8u; column < params.width; column += 8u) {
                let from_row = at + (row + r) * inner + column;
                sum += dot(d_out[from_row], out[from_row]);
            }
        }
        parts[8u * r + lane % 8u] = sum;
    }
}

// The sums of the parts of four queries.
fn gathered(y: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var i = 0u; i < 8u; i++) {
        let at = 8u * y + i;
        sum += vec4(parts[at], parts[at + 8u], parts[at + 16u], parts[at + 24u]);
    }
    return sum;
}

fn lse_of(at: vec4<u32>) -> vec4<f32> {
    return vec4(lse[at.x], lse[at.y], lse[at.z], lse[at.w]);
}

fn load_b(pair: u32, kind: u32, row: u32, column: u32, lane: u32) {
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        tile_b[8u * r + r / 4u + lane % 8u] = element(pair, kind, row + r, column + lane % 8u);
    }
}

// 0 outside.
fn element(pair: u32, kind: u32, row: u32, column: u32) -> vec4<f32> {
    if row >= params.tokens || column >= params.width {
        return vec4(0.0);
    }
    let token = pair / params.heads * params.tokens + row;
    let place = pair % params.heads * params.width + column;
    let inner = params.heads * params.width;
    if kind == D_OUT {
        return d_out[token * inner + place];
    }
    return qkv[(3u * token + kind) * inner + place];
}

fn store(pair: u32, kind: u32, row: u32, column: u32, x: vec4<f32>) {
    if row < params.tokens && column < params.width {
        let token = pair / params.heads * params.tokens + row;
        let inner = params.heads * params.width;
        d_qkv[(3u * token + kind) * inner + pair % params.heads * params.width + column] = x;
    }
}
