// The slopes of attention_forward_tiled: from those of out to those of q, k and v (Dao, 2023)
//
// q, k, v, out, lse and mask as in attention_forward_tiled; d_out as out; d_qkv holds d_q, d_k and d_v where the parameters
// say, with steps of their own. With p = exp(scale q kᵀ + mask - lse): d_v = D(p)ᵀ d_out; with
// d_s = p (D(d_out vᵀ) - rowsum(d_out out)): d_q = scale d_s k, d_k = scale d_sᵀ q. Heads that share keys and values are
// added up. Nothing of size queries x keys is stored.
// Grid: three kinds of workgroups: params.each that make 32 rows of d_q and walk over keys, then as many that make 32 rows
// of d_k as that make 32 of d_v and walk over the queries of all heads that share them; 64 of d's columns each. An invocation makes
// 4 x 4 of the scores of 32 queries and 32 keys.
// Workgroup memory: 32 tokens' 32 columns twice, 32 x 32 weights, and 8 partial sums for each query: 13 KiB.
// Accumulation order: keys (d_q) or queries (d_k, d_v) ascending in steps of 32.
// How it got fast: (1) attention_backward, for CPUs that play a GPU; (2) this one shares what it loads among 64
// invocations, which a GPU wants; (3) no array is indexed at run time, products are there once, and d_v is a kind of its
// own: it makes p again, but nobody holds more sums than registers.

//#include "attention_params"
//#include "attention_masked"
//#include "attention_tiles"

// Whether there may be a mask or dropout.
const MASKED = false; //#masked: const MASKED = true;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> mask: array<f32>;
@group(0) @binding(4) var<storage, read> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> lse: array<f32>;
@group(0) @binding(6) var<storage, read> d_out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> d_qkv: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> params: Params;

// Which of the numbers of tokens a tile takes.
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
    let pairs = params.pairs / params.group;
    let key_blocks = (params.keys + 31u) / 32u;
    let each_of_keys = pairs * params.chunks * key_blocks;
    let for_keys = number >= params.each;
    let made_kind = select(QUERIES, KEYS + min((number - params.each) / each_of_keys, 1u), for_keys);
    let unit = select(number, (number - params.each) % each_of_keys, for_keys);
    // Heads of queries, or of keys.
    let own_pairs = select(params.pairs, pairs, for_keys);
    let blocks = select((params.queries + 31u) / 32u, key_blocks, for_keys);
    let first = 16u * (unit / own_pairs % params.chunks);
    let block = unit / (own_pairs * params.chunks);
    // Surplus groups walk over nothing and store nothing.
    let there = block < blocks && number < params.each + 2u * each_of_keys;
    let near = min(block, blocks - 1u);
    // Those with most to do come first of each kind.
    let base = 32u * select(blocks - 1u - near, near, for_keys);
    let begin = select(0u, base, is_causal() && for_keys);
    let own_end = select(params.keys, params.queries, for_keys);
    let end = select(own_end, min(own_end, base + 32u), is_causal() && !for_keys);
    // Tiles to walk over, of one head or of all that share keys; the first of these heads of queries.
    let tiles = select(0u, (end - begin + 31u) / 32u, there && begin < end);
    let heads = select(1u, params.group, for_keys);
    let first_pair = unit % own_pairs * heads;
    // This invocation's tokens: 4 whose slopes are made, 4 of those walked over.
    let x = 4u * (lane % 8u);
    let y = 4u * (lane / 8u);
    let mine = base + y + vec4(0u, 1u, 2u, 3u);
    let wide = first + 8u < params.width;
    let place = 8u * y + x / 4u;
    if !for_keys {
        deltas(first_pair, base, lane);
    }
    var acc0 = mat4x4<f32>();
    var acc1 = mat4x4<f32>();
    for (var tile = 0u; tile < tiles * heads; tile++) {
        let pair = first_pair + tile / tiles;
        let at = begin + 32u * (tile % tiles);
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
            var made = products(
                pair, select(query_kind, key_kind, for_keys), base, select(key_kind, query_kind, for_keys), at, lane,
            );
            let queries = min(select(mine, others, for_keys), vec4(params.queries - 1u));
            let key = select(others.x, mine.x, for_keys);
            var kept = mat4x4<f32>();
            if MASKED && scores == (made_kind == VALUES) {
                kept = turned(kept_of(pair * params.queries + queries, key), for_keys);
            }
            if scores {
                made *= params.scale;
                if MASKED {
                    let head = pair % params.heads;
                    made += turned(bias_of(pair / params.heads, head, queries, key), for_keys);
                }
                let level = lse_of(pair * params.queries + queries);
                var p = mat4x4<f32>(
                    weight(made[0], mine.x, others, level.x, level, for_keys),
                    weight(made[1], mine.y, others, level.y, level, for_keys),
                    weight(made[2], mine.z, others, level.z, level, for_keys),
                    weight(made[3], mine.w, others, level.w, level, for_keys),
                );
                if MASKED && made_kind == VALUES {
                    p = by_place(p, kept);
                }
                put_weights(p, place);
            } else {
                if MASKED {
                    made = by_place(made, kept);
                }
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
        store_rows(unit % own_pairs, made_kind, mine, column, scale * acc0);
        store_rows(unit % own_pairs, made_kind, mine, column + 8u, scale * acc1);
    }
}

// What is made for queries and keys, for keys and queries.
fn turned(x: mat4x4<f32>, for_keys: bool) -> mat4x4<f32> {
    if for_keys {
        return transpose(x);
    }
    return x;
}

// The weights of four tokens with one whose slopes are made; both have levels, of which the queries' count.
fn weight(s: vec4<f32>, own: u32, others: vec4<u32>, own_level: f32, levels: vec4<f32>, for_keys: bool) -> vec4<f32> {
    let last = vec4(params.keys - 1u);
    let query = select(vec4(own), others, for_keys);
    let key = select(others, vec4(own), for_keys);
    let limit = select(last, min(query, last), is_causal());
    let seen = (key <= limit) & (query < vec4(params.queries));
    return select(vec4(0.0), exp(s - select(vec4(own_level), levels, for_keys)), seen);
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
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let d_out_at = begin_of(params.d_out.x, params.d_out.y, params.d_out.z, batch, head);
    let out_at = begin_of(params.out.x, params.out.y, params.out.z, batch, head);
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        var sum = 0.0;
        if row + r < params.queries {
            for (var column = lane % 8u; column < params.width; column += 8u) {
                let d = d_out[d_out_at + (row + r) * params.d_out.w + column];
                sum += dot(d, out[out_at + (row + r) * params.out.w + column]);
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

// Of the head of queries `pair`, or of the keys that it sees; 0 outside.
fn element(pair: u32, kind: u32, row: u32, column: u32) -> vec4<f32> {
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let own = kind == QUERIES || kind == D_OUT;
    let tokens = select(params.keys, params.queries, own);
    let token = min(row, tokens - 1u);
    let place = min(column, params.width - 1u);
    var x: vec4<f32>;
    if kind == D_OUT {
        x = d_out[begin_of(params.d_out.x, params.d_out.y, params.d_out.z, batch, head) + token * params.d_out.w + place];
    } else if kind == QUERIES {
        x = q[begin_of(params.q.x, params.q.y, params.q.z, batch, head) + token * params.q.w + place];
    } else if kind == KEYS {
        x = k[begin_of(params.k.x, params.k.y, params.k.z, batch, head / params.group) + token * params.k.w + place];
    } else {
        x = v[begin_of(params.v.x, params.v.y, params.v.z, batch, head / params.group) + token * params.v.w + place];
    }
    return select(vec4(0.0), x, row < tokens && column < params.width);
}

fn store_rows(pair: u32, kind: u32, rows: vec4<u32>, column: u32, x: mat4x4<f32>) {
    store(pair, kind, rows.x, column, x[0]);
    store(pair, kind, rows.y, column, x[1]);
    store(pair, kind, rows.z, column, x[2]);
    store(pair, kind, rows.w, column, x[3]);
}

// `pair` is a head of the kind.
fn store(pair: u32, kind: u32, row: u32, column: u32, x: vec4<f32>) {
    let heads = select(params.heads / params.group, params.heads, kind == QUERIES);
    let place = select(select(params.d_v, params.d_k, kind == KEYS), params.d_q, kind == QUERIES);
    let tokens = select(params.keys, params.queries, kind == QUERIES);
    if row < tokens && column < params.width {
        d_qkv[begin_of(place.x, place.y, place.z, pair / heads, pair % heads) + row * place.w + column] = x;
    }
}
