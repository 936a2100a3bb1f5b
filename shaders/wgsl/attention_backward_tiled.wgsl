// The slopes of attention_forward_tiled: from those of out to those of q, k and v (Dao, 2023)
//
// qkv and d_qkv [batch, tokens, 3, heads, d], out and d_out [batch, tokens, heads, d], lse [batch,
// heads, tokens]; d = 4 width. With p = exp(scale q kᵀ - lse): d_v = pᵀ d_out; with
// d_s = p (d_out vᵀ - rowsum(d_out out)): d_q = scale d_s k, d_k = scale d_sᵀ q. Nothing of size
// tokens x tokens is stored.
// Grid: three kinds of workgroups, as many of each. One of the first kind makes 32 rows of d_q and walks over keys; one
// of the others makes 32 rows of d_k or of d_v and walks over queries; 64 of d's columns each. An invocation makes
// 4 x 4 of the scores of 32 queries and 32 keys.
// Workgroup memory: 32 tokens' 32 columns twice, 32 x 32 weights, and 8 partial sums for each query: 13 KiB.
// Accumulation order: keys (d_q) or queries (d_k, d_v) ascending in steps of 32.
// How it got fast: (1) attention_backward, for CPUs that play a GPU; (2) this one shares what it loads among 64
// invocations, which a GPU wants; (3) no array is indexed at run time, products are there once, and d_v is a kind of its
// own: it makes p again, but nobody holds more sums than registers.

//#include "attention_tiles"

struct Params {
    //#include "attention_params"
    // Workgroups of each kind.
    each: u32,
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
    let made_kind = min(number / params.each, VALUES);
    let for_keys = made_kind != QUERIES;
    let unit = number % params.each;
    let pair = unit % params.pairs;
    let first = 16u * (unit / params.pairs % params.chunks);
    let block = unit / (params.pairs * params.chunks);
    let blocks = (params.tokens + 31u) / 32u;
    // Surplus groups walk over nothing and store nothing.
    let there = block < blocks && number < 3u * params.each;
    let near = min(block, blocks - 1u);
    // Those with most to do come first of each kind.
    let base = 32u * select(blocks - 1u - near, near, for_keys);
    let causal = params.causal != 0u;
    let begin = select(0u, base, causal && for_keys);
    let stop = select(params.tokens, min(params.tokens, base + 32u), causal && !for_keys);
    let end = select(0u, stop, there);
    // This invocation's tokens: 4 whose slopes are made, 4 of those walked over.
    let x = 4u * (lane % 8u);
    let y = 4u * (lane / 8u);
    let mine = base + y + vec4(0u, 1u, 2u, 3u);
    let wide = first + 8u < params.width;
    let place = 8u * y + x / 4u;
    if !for_keys {
        deltas(pair, base, lane);
    }
    var acc0 = mat4x4<f32>();
    var acc1 = mat4x4<f32>();
    for (var at = begin; at < end; at += 32u) {
        let others = at + x + vec4(0u, 1u, 2u, 3u);
        if made_kind == KEYS {
            // Read only after the barriers of the products.
            deltas(pair, at, lane);
        }
        // First the weights p, then d_s. A loop, lest products are there twice; what lies in workgroup memory is held in
        // no registers meanwhile.
        for (var step = 0u; step < select(2u, 1u, made_kind == VALUES); step++) {
            let scores = step == 0u;
            let query_kind = select(D_OUT, QUERIES, scores);
            let key_kind = select(VALUES, KEYS, scores);
            let made = products(
                pair, select(query_kind, key_kind, for_keys), base, select(key_kind, query_kind, for_keys), at, lane,
            );
            if scores {
                let queries = select(mine, others, for_keys);
                let level = lse_of(pair * params.tokens + min(queries, vec4(params.tokens - 1u)));
                put_weights(mat4x4<f32>(
                    weight(made[0], mine.x, others, level.x, level, for_keys),
                    weight(made[1], mine.y, others, level.y, level, for_keys),
                    weight(made[2], mine.z, others, level.z, level, for_keys),
                    weight(made[3], mine.w, others, level.w, level, for_keys),
                ), place);
            } else {
                let delta = gathered(select(y, x, for_keys));
                put_weights(mat4x4<f32>(
                    weights[place] * (made[0] - select(vec4(delta.x), delta, for_keys)),
                    weights[place + 8u] * (made[1] - select(vec4(delta.y), delta, for_keys)),
                    weights[place + 16u] * (made[2] - select(vec4(delta.z), delta, for_keys)),
                    weights[place + 24u] * (made[3] - select(vec4(delta.w), delta, for_keys)),
                ), place);
            }
        }
        let source = select(select(D_OUT, QUERIES, made_kind == KEYS), KEYS, made_kind == QUERIES);
        for (var half = 0u; half < select(1u, 2u, wide); half++) {
            let more = weighted(pair, source, at, first + 8u * half, lane);
            if half == 0u {
                acc0 += more;
            } else {
                acc1 += more;
            }
        }
    }
    if there {
        let scale = select(params.scale, 1.0, made_kind == VALUES);
        let column = first + x / 4u;
        store_rows(pair, made_kind, mine, column, scale * acc0);
        store_rows(pair, made_kind, mine, column + 8u, scale * acc1);
    }
}

// The weights of four tokens with one whose slopes are made; both have levels, of which the queries' count.
fn weight(s: vec4<f32>, own: u32, others: vec4<u32>, own_level: f32, levels: vec4<f32>, for_keys: bool) -> vec4<f32> {
    let last = vec4(params.tokens - 1u);
    let query = select(vec4(own), others, for_keys);
    let key = select(others, vec4(own), for_keys);
    let limit = select(last, min(query, last), params.causal != 0u);
    let seen = (key <= limit) & (query <= last);
    return select(vec4(0.0), exp(params.scale * s - select(vec4(own_level), levels, for_keys)), seen);
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
        s = add_scores(s, 32u * y, 33u * x);
        workgroupBarrier();
    }
    return s;
}

// The sum of 32 tokens' rows by weight: four columns of it for this invocation's tokens.
fn weighted(pair: u32, kind: u32, row: u32, column: u32, lane: u32) -> mat4x4<f32> {
    load_b(pair, kind, row, column, lane);
    workgroupBarrier();
    let sum = weighted_sum(32u * (lane / 8u), lane % 8u);
    workgroupBarrier();
    return sum;
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
    let token = pair / params.heads * params.tokens + min(row, params.tokens - 1u);
    let place = pair % params.heads * params.width + min(column, params.width - 1u);
    let inner = params.heads * params.width;
    var x: vec4<f32>;
    if kind == D_OUT {
        x = d_out[token * inner + place];
    } else {
        x = qkv[(3u * token + kind) * inner + place];
    }
    return select(vec4(0.0), x, row < params.tokens && column < params.width);
}

fn store_rows(pair: u32, kind: u32, rows: vec4<u32>, column: u32, x: mat4x4<f32>) {
    store(pair, kind, rows.x, column, x[0]);
    store(pair, kind, rows.y, column, x[1]);
    store(pair, kind, rows.z, column, x[2]);
    store(pair, kind, rows.w, column, x[3]);
}

fn store(pair: u32, kind: u32, row: u32, column: u32, x: vec4<f32>) {
    if row < params.tokens && column < params.width {
        let token = pair / params.heads * params.tokens + row;
        let inner = params.heads * params.width;
        d_qkv[(3u * token + kind) * inner + pair % params.heads * params.width + column] = x;
    }
}
