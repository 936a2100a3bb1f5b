// out = rows of x turned by their token's angles, number i with number i + d / 2 (as Hugging Face's models have it)
//
// x, out [batch, heads, tokens, d] with any steps between sequences, heads and tokens; cosine, sine [batch, tokens, d],
// whose batch may be 1. With h = d / 2: out[i] = x[i] cosine[i] - x[i + h] sine[i] and out[i + h] = x[i + h] cosine[i + h]
// + x[i] sine[i + h] for i < h. With params.back it is the backward pass: to x[i] goes gradient[i] cosine[i] +
// gradient[i + h] sine[i + h], to x[i + h] goes gradient[i + h] cosine[i + h] - gradient[i] sine[i].
// Grid: rows of workgroups of 64; an invocation makes an Elem of each half.
// Workgroup memory: none.
// Accumulation order: two products a sum.
// How it got fast: (1) four pairs an invocation where heads are multiples of 8; no sines here.

//#include "elem"

// In Elem.
struct Params {
    // The first number, and the steps from a sequence, a head and a token to the next.
    x: vec4<u32>,
    out: vec4<u32>,
    count: u32,
    half: u32,
    tokens: u32,
    heads: u32,
    // The step of cosine and sine from a sequence to the next.
    table: u32,
    back: u32,
}

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> cosine: array<Elem>;
@group(0) @binding(2) var<storage, read> sine: array<Elem>;
@group(0) @binding(3) var<storage, read_write> out: array<Elem>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = (group.y * groups.x + group.x) * 64u + lane;
    if number >= params.count {
        return;
    }
    let column = number % params.half;
    let row = number / params.half;
    let token = row % params.tokens;
    let head = row / params.tokens % params.heads;
    let batch = row / (params.tokens * params.heads);
    let angle = params.table * batch + 2u * params.half * token + column;
    let next = angle + params.half;
    let from_row = params.x.x + params.x.y * batch + params.x.z * head + params.x.w * token + column;
    let to = params.out.x + params.out.y * batch + params.out.z * head + params.out.w * token + column;
    let low = x[from_row];
    let high = x[from_row + params.half];
    if params.back == 0u {
        out[to] = low * cosine[angle] - high * sine[angle];
        out[to + params.half] = high * cosine[next] + low * sine[next];
    } else {
        out[to] = low * cosine[angle] + high * sine[next];
        out[to + params.half] = high * cosine[next] - low * sine[angle];
    }
}
