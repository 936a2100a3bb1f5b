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
// per 1024 products at d = 32. Wider heads compute scores once per 32 columns.

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
    let last = params.tokens - 1u;
    let batch = pair / params.heads;
    let head = pair % params.heads;
    let stride = 3u * params.heads * params.width;
    let q_at = batch * params.tokens * stride + head * params.width;
    let k_at = q_at + params.heads * params.width;
    let v_at = k_at + params.heads * params.width;
    let q_rows = q_at + stride * min(rows, vec4(last));
    // The last key that each row sees.
    let limit = select(vec4(last), min(rows, vec4(last)), params.causal != 0u);
    let q = queries(q_rows, chunk);
    let low = columns(chunk, 0u);
    let high = columns(chunk, 4u);
    var top = vec4(HIDDEN);
    var sum = vec4(0.0);
    var acc = Block();
    for (var key = 0u; key <= limit.w; key += 4u) {
        let keys = vec4(key, key + 1u, key + 2u, key + 3u);
        let step = stride * min(keys, vec4(last));
        var s = scores(q, k_at + step, chunk);
        for (var other = 1u; other < params.chunks; other++) {
            let c = (chunk + other) % params.chunks;
            s += scores(queries(q_rows, c), k_at + step, c);
        }
        s[0] = select(s[0], vec4(HIDDEN), keys > vec4(limit.x));
        s[1] = select(s[1], vec4(HIDDEN), keys > vec4(limit.y));
        s[2] = select(s[2], vec4(HIDDEN), keys > vec4(limit.z));
        s[3] = select(s[3], vec4(HIDDEN), keys > vec4(limit.w));
        let t = transpose(s);
        let higher = max(top, max(max(t[0], t[1]), max(t[2], t[3])));
        let fade = exp(top - higher);
        top = higher;
        let p0 = exp(s[0] - top.x);
        let p1 = exp(s[1] - top.y);
        let p2 = exp(s[2] - top.z);
        let p3 = exp(s[3] - top.w);
        let p = mat4x4<f32>(p0, p1, p2, p3);
        sum = sum * fade + vec4(1.0) * p;
        let v = v_at + step;
        acc.c0 = faded(acc.c0, fade) + quad(v + low.x) * p;
        acc.c1 = faded(acc.c1, fade) + quad(v + low.y) * p;
        acc.c2 = faded(acc.c2, fade) + quad(v + low.z) * p;
        acc.c3 = faded(acc.c3, fade) + quad(v + low.w) * p;
        acc.c4 = faded(acc.c4, fade) + quad(v + high.x) * p;
        acc.c5 = faded(acc.c5, fade) + quad(v + high.y) * p;
        acc.c6 = faded(acc.c6, fade) + quad(v + high.z) * p;
        acc.c7 = faded(acc.c7, fade) + quad(v + high.w) * p;
    }
    let share = 1.0 / sum;
    let out_at = (batch * params.tokens + row) * params.heads * params.width + head * params.width;
    let lse_at = pair * params.tokens + row;
    for (var i = 0u; i < 4u; i++) {
        if row + i > last {
            return;
        }
        let at = out_at + i * params.heads * params.width;
        store(at, 8u * chunk, acc.c0[i] * share[i]);
        store(at, 8u * chunk + 1u, acc.c1[i] * share[i]);
        store(at, 8u * chunk + 2u, acc.c2[i] * share[i]);
        store(at, 8u * chunk + 3u, acc.c3[i] * share[i]);
        store(at, 8u * chunk + 4u, acc.c4[i] * share[i]);
        store(at, 8u * chunk + 5u, acc.c5[i] * share[i]);
        store(at, 8u * chunk + 6u, acc.c6[i] * share[i]);
        store(at, 8u * chunk + 7u, acc.c7[i] * share[i]);
        if chunk == 0u {
            lse[lse_at + i] = top[i] + log(sum[i]);
        }
    }
}

fn store(at: u32, column: u32, value: vec4<f32>) {
    if column < params.width {
        out[at + column] = value;
    }
}

// Four of a chunk's columns. What lies outside is a repetition of the last one.
fn columns(chunk: u32, first: u32) -> vec4<u32> {
    return min(vec4(0u, 1u, 2u, 3u) + 8u * chunk + first, vec4(params.width - 1u));
}

fn quad(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
}

// A chunk of four queries, scaled; 0 outside.
fn queries(rows: vec4<u32>, chunk: u32) -> Block {
    let low = columns(chunk, 0u);
    let high = columns(chunk, 4u);
    let inside = vec4(params.width) > vec4(0u, 1u, 2u, 3u) + 8u * chunk;
    let inside_high = vec4(params.width) > vec4(4u, 5u, 6u, 7u) + 8u * chunk;
    let x = select(vec4(0.0), vec4(params.scale), inside);
    let y = select(vec4(0.0), vec4(params.scale), inside_high);
    return Block(
        quad(rows + low.x) * x.x,
        quad(rows + low.y) * x.y,
        quad(rows + low.z) * x.z,
        quad(rows + low.w) * x.w,
        quad(rows + high.x) * y.x,
        quad(rows + high.y) * y.y,
        quad(rows + high.z) * y.z,
        quad(rows + high.w) * y.w,
    );
}

// The part that a chunk has in the scores of four queries (columns) and four keys (rows).
fn scores(q: Block, keys: vec4<u32>, chunk: u32) -> mat4x4<f32> {
    let low = columns(chunk, 0u);
    let high = columns(chunk, 4u);
    var s = transpose(quad(keys + low.x)) * q.c0;
    s += transpose(quad(keys + low.y)) * q.c1;
    s += transpose(quad(keys + low.z)) * q.c2;
    s += transpose(quad(keys + low.w)) * q.c3;
    s += transpose(quad(keys + high.x)) * q.c4;
    s += transpose(quad(keys + high.y)) * q.c5;
    s += transpose(quad(keys + high.z)) * q.c6;
    s += transpose(quad(keys + high.w)) * q.c7;
    return s;
}

fn faded(m: mat4x4<f32>, fade: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(m[0] * fade.x, m[1] * fade.y, m[2] * fade.z, m[3] * fade.w);
}
