// out = softmax(q kᵀ / sqrt(d) + mask) v per head, lse = its row sums' logarithms (Dao, 2023)
//
// qkv [batch, tokens, 3, heads, d], as one product makes it: queries, keys, values side by side; out
// [batch, tokens, heads, d]; lse [batch, heads, tokens]. d = 4 width. The mask hides later tokens if
// causal. Nothing of size tokens x tokens is stored.
// Grid: one row of workgroups, each 32 queries of a head by 64 of d's columns; the ones with most keys
// come first. An invocation makes 4 x 4 of the scores of 32 queries and 32 keys, and 4 x 8 of the
// output.
// Workgroup memory: 32 queries and 32 keys (or values) of 32 columns, their 32 x 32 weights, and 8
// maxima for each query: 13 KiB.
// Accumulation order: keys ascending; what is summed is scaled down whenever a row's maximum rises.
// How it got fast: (1) attention_forward, for CPUs that play a GPU; (2) this one shares what it loads
// among 64 invocations, which a GPU wants. Wider heads than 64 compute scores once per 64 columns.

//#include "attention_tiles"
//#include "scaled_rows"

struct Params {
    //#include "attention_params"
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> lse: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

const HIDDEN = -1e30;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let unit = group.y * groups.x + group.x;
    let pair = unit % params.pairs;
    let first = 16u * (unit / params.pairs % params.chunks);
    let block = unit / (params.pairs * params.chunks);
    let blocks = (params.tokens + 31u) / 32u;
    // Surplus groups see no keys and store nothing.
    let there = block < blocks;
    let row = 32u * (blocks - 1u - min(block, blocks - 1u));
    let inner = params.heads * params.width;
    let batch = pair / params.heads;
    let q_at = batch * params.tokens * 3u * inner + pair % params.heads * params.width;
    let visible = select(params.tokens, min(params.tokens, row + 32u), params.causal != 0u);
    let end = select(0u, visible, there);
    let halves = select(1u, 2u, first + 8u < params.width);
    // This invocation's queries and keys within the tile.
    let x = 4u * (lane % 8u);
    let y = 4u * (lane / 8u);
    let rows = row + y + vec4(0u, 1u, 2u, 3u);
    let limit = select(vec4(params.tokens - 1u), min(rows, vec4(params.tokens - 1u)), params.causal != 0u);
    var top = vec4(HIDDEN);
    var sum = vec4(0.0);
    var acc0 = mat4x4<f32>();
    var acc1 = mat4x4<f32>();
    for (var key = 0u; key < end; key += 32u) {
        var s = mat4x4<f32>();
        for (var column = 0u; column < params.width; column += 8u) {
            load_a(q_at, row, column, lane);
            load_b(q_at + inner, key, column, lane);
            workgroupBarrier();
            s = add_scores(s, 8u * y, 8u * x + x / 4u);
            workgroupBarrier();
        }
        s *= params.scale;
        let keys = key + x + vec4(0u, 1u, 2u, 3u);
        s[0] = select(s[0], vec4(HIDDEN), keys > vec4(limit.x));
        s[1] = select(s[1], vec4(HIDDEN), keys > vec4(limit.y));
        s[2] = select(s[2], vec4(HIDDEN), keys > vec4(limit.z));
        s[3] = select(s[3], vec4(HIDDEN), keys > vec4(limit.w));
        let across = transpose(s);
        spread(lane, max(max(across[0], across[1]), max(across[2], across[3])));
        workgroupBarrier();
        var higher = top;
        for (var i = 0u; i < 8u; i++) {
            higher = max(higher, gathered(y, i));
        }
        let fade = exp(top - higher);
        top = higher;
        let p = mat4x4<f32>(exp(s[0] - top.x), exp(s[1] - top.y), exp(s[2] - top.z), exp(s[3] - top.w));
        // Of this invocation's keys only; added up at the end.
        sum = sum * fade + vec4(1.0) * p;
        put_weights(p, 8u * y + x / 4u);
        acc0 = scaled_rows(acc0, fade);
        acc1 = scaled_rows(acc1, fade);
        for (var half = 0u; half < halves; half++) {
            load_b(q_at + 2u * inner, key, first + 8u * half, lane);
            workgroupBarrier();
            let more = weighted_sum(8u * y, x / 4u);
            if half == 0u {
                acc0 += more;
            } else {
                acc1 += more;
            }
            workgroupBarrier();
        }
    }
    spread(lane, sum);
    workgroupBarrier();
    sum = vec4(0.0);
    for (var i = 0u; i < 8u; i++) {
        sum += gathered(y, i);
    }
    let out_at = batch * params.tokens * inner + pair % params.heads * params.width;
    let column = first + x / 4u;
    let level = top + log(sum);
    let place = out_at + column;
    if there {
        store(rows.x, place, column, acc0[0] / sum.x, acc1[0] / sum.x);
        store(rows.y, place, column, acc0[1] / sum.y, acc1[1] / sum.y);
        store(rows.z, place, column, acc0[2] / sum.z, acc1[2] / sum.z);
        store(rows.w, place, column, acc0[3] / sum.w, acc1[3] / sum.w);
        if first == 0u && x == 0u {
            store_level(pair, rows.x, level.x);
            store_level(pair, rows.y, level.y);
            store_level(pair, rows.z, level.z);
            store_level(pair, rows.w, level.w);
        }
    }
}

fn store(row: u32, place: u32, column: u32, x: vec4<f32>, y: vec4<f32>) {
    if row < params.tokens {
        let at = place + row * params.heads * params.width;
        if column < params.width {
            out[at] = x;
        }
        if column + 8u < params.width {
            out[at + 8u] = y;
        }
    }
}

fn store_level(pair: u32, row: u32, x: f32) {
    if row < params.tokens {
        lse[pair * params.tokens + row] = x;
    }
}

fn load_a(at: u32, row: u32, column: u32, lane: u32) {
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        tile_a[8u * r + lane % 8u] = of_qkv(at, row + r, column + lane % 8u);
    }
}

fn load_b(at: u32, row: u32, column: u32, lane: u32) {
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        tile_b[8u * r + r / 4u + lane % 8u] = of_qkv(at, row + r, column + lane % 8u);
    }
}

// 0 outside.
fn of_qkv(at: u32, row: u32, column: u32) -> vec4<f32> {
    let near = min(row, params.tokens - 1u) * 3u * params.heads * params.width + min(column, params.width - 1u);
    return select(vec4(0.0), qkv[at + near], row < params.tokens && column < params.width);
}

// An invocation's number for each of its four rows, and what invocation i of these rows has put.
fn spread(lane: u32, x: vec4<f32>) {
    let at = 32u * (lane / 8u) + lane % 8u;
    parts[at] = x.x;
    parts[at + 8u] = x.y;
    parts[at + 16u] = x.z;
    parts[at + 24u] = x.w;
}

fn gathered(y: u32, i: u32) -> vec4<f32> {
    let at = 8u * y + i;
    return vec4(parts[at], parts[at + 8u], parts[at + 16u], parts[at + 24u]);
}
