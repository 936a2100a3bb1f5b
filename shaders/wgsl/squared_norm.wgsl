// partial[j] = (sum of x[i]^2 over finite x[i], number of x[i] that are not finite), i of invocation j
//
// x a vector of n elements, n a multiple of 4; partial [invocations]. squared_norm_total makes one of them.
// Grid: x over invocations, which take vec4 after vec4 in turn: stride apart.
// Workgroup memory: none.
// Accumulation order: each invocation adds along the vector, four sums at a time, and then those
// pairwise. It depends on the number of invocations alone, so that the bits repeat.
// How it got fast: it reads the vector once, as vec4, for both results.

struct Params {
    fours: u32,
    stride: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> partial: array<vec2<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.stride {
        return;
    }
    var squares = vec4(0.0);
    var others = vec4(0u);
    for (var at = id.x; at < params.fours; at += params.stride) {
        let value = x[at];
        // By bits: compilers may take for granted that numbers are finite.
        let finite = (bitcast<vec4<u32>>(value) & vec4(0x7f800000u)) != vec4(0x7f800000u);
        let known = select(vec4(0.0), value, finite);
        squares = fma(known, known, squares);
        others += select(vec4(1u), vec4(0u), finite);
    }
    let sum = (squares.x + squares.y) + (squares.z + squares.w);
    partial[id.x] = vec2(sum, f32(others.x + others.y + others.z + others.w));
}
