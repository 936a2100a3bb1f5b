// out = D(softmax(scale q kᵀ + mask)) v per head, lse = the logarithms of its rows' sums (Dao, 2023)
//
// q, out [batch, heads, queries, d], k, v [batch, heads / group, keys, d] with any steps between sequences, heads and
// tokens; d = 4 width. So q, k and v may lie side by side in one buffer, as one product makes them. lse [batch, heads,
// queries]. If causal, query i sees keys up to i. The variant `masked` adds mask [batch, heads, queries, keys], whose
// axes may be shared, and D drops weights and scales the others. Nothing of size queries x keys is stored.
// Grid: one row of workgroups, each 32 queries of a head by 64 of d's columns; the ones with most keys
// come first. An invocation makes 4 x 4 of the scores of 32 queries and 32 keys, and 4 x 8 of the
// output.
// Workgroup memory: 32 queries and 32 keys (or values) of 32 columns, their 32 x 32 weights, and 8
// maxima for each query: 13 KiB.
// Accumulation order: keys ascending; what is summed is scaled down whenever a row's maximum rises.
// How it got fast: (1) attention_forward, for CPUs that play a GPU; (2) this one shares what it loads
// among 64 invocations, which a GPU wants. Wider heads than 64 compute scores once per 64 columns.

//#include "attention_params"
//#include "attention_masked"
//#include "attention_tiles"
//#include "scaled_rows"

// Whether there may be a mask or dropout.
const MASKED = false; //#masked: const MASKED = true;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> mask: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;

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
    let blocks = (params.queries + 31u) / 32u;
    // Surplus groups see no keys and store nothing.
    let there = block < blocks;
    let row = 32u * (blocks - 1u - min(block, blocks - 1u));
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let q_at = begin_of(params.q.x, params.q.y, params.q.z, batch, head);
    let k_at = begin_of(params.k.x, params.k.y, params.k.z, batch, head / params.group);
    let v_at = begin_of(params.v.x, params.v.y, params.v.z, batch, head / params.group);
    let visible = select(params.keys, min(params.keys, row + 32u), is_causal());
    let end = select(0u, visible, there);
    let halves = select(1u, 2u, first + 8u < params.width);
    // This invocation's queries and keys within the tile.
    let x = 4u * (lane % 8u);
    let y = 4u * (lane / 8u);
    let rows = row + y + vec4(0u, 1u, 2u, 3u);
    let near = min(rows, vec4(params.queries - 1u));
    let limit = select(vec4(params.keys - 1u), min(near, vec4(params.keys - 1u)), is_causal());
    var top = vec4<f32>(LOWEST);
    var sum = vec4(0.0);
    var acc0 = mat4x4<f32>();
    var acc1 = mat4x4<f32>();
    for (var key = 0u; key < end; key += 32u) {
        var s = mat4x4<f32>();
        for (var column = 0u; column < params.width; column += 8u) {
            load_q(q_at, row, column, lane);
            load_k(k_at, key, column, lane);
            workgroupBarrier();
            s = add_scores(s, 8u * y, 8u * x + x / 4u);
            workgroupBarrier();
        }
        s *= params.scale;
        if MASKED {
            s += bias_of(batch, head, near, key + x);
        }
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
        var p = mat4x4<f32>(exp(s[0] - top.x), exp(s[1] - top.y), exp(s[2] - top.z), exp(s[3] - top.w));
        // Of this invocation's keys only; added up at the end.
        sum = sum * fade + vec4(1.0) * p;
        if MASKED {
            p = by_place(p, kept_of(pair * params.queries + near, key + x));
        }
        put_weights(p, 8u * y + x / 4u);
        acc0 = scaled_rows(acc0, fade);
        acc1 = scaled_rows(acc1, fade);
        for (var half = 0u; half < halves; half++) {
            load_v(v_at, key, first + 8u * half, lane);
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
    let column = first + x / 4u;
    let level = level_of(top, sum);
    let place = begin_of(params.out.x, params.out.y, params.out.z, batch, head) + column;
    sum = divisor_of(sum);
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
    if row < params.queries {
        let at = place + row * params.out.w;
        if column < params.width {
            out[at] = x;
        }
        if column + 8u < params.width {
            out[at + 8u] = y;
        }
    }
}

fn store_level(pair: u32, row: u32, x: f32) {
    if row < params.queries {
        lse[pair * params.queries + row] = x;
    }
}

// Each 8 vec4 of 32 tokens, 0 outside.
fn load_q(at: u32, row: u32, column: u32, lane: u32) {
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        let x = q[at + params.q.w * min(row + r, params.queries - 1u) + min(column + lane % 8u, params.width - 1u)];
        tile_a[8u * r + lane % 8u] = select(vec4(0.0), x, row + r < params.queries && column + lane % 8u < params.width);
    }
}

fn load_k(at: u32, row: u32, column: u32, lane: u32) {
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        let x = k[at + params.k.w * min(row + r, params.keys - 1u) + min(column + lane % 8u, params.width - 1u)];
        tile_b[8u * r + r / 4u + lane % 8u] = select(vec4(0.0), x, row + r < params.keys && column + lane % 8u < params.width);
    }
}

fn load_v(at: u32, row: u32, column: u32, lane: u32) {
    for (var i = 0u; i < 4u; i++) {
        let r = lane / 8u + 8u * i;
        let x = v[at + params.v.w * min(row + r, params.keys - 1u) + min(column + lane % 8u, params.width - 1u)];
        tile_b[8u * r + r / 4u + lane % 8u] = select(vec4(0.0), x, row + r < params.keys && column + lane % 8u < params.width);
    }
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
