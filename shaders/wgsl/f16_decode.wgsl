// x[i] = half[i] 2^exponent[r], i in run r
//
// The way back of f16_encode: half four in each pair of words, exponent one per run of `run` vec4, x as
// the bits of f32.
// Grid: row after row over blocks of 256 elements, 4 per invocation.
// Workgroup memory: none.
// Accumulation order: each element stands alone.
// How it got fast: it did not have to. Integers only: so every adapter gets the same bits, also of
// numbers that are too small for some.

struct Params {
    fours: u32,
    run: u32,
    groups_per_row: u32,
}

@group(0) @binding(0) var<storage, read> half: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> exponent: array<i32>;
@group(0) @binding(2) var<storage, read_write> x: array<vec4<u32>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = (workgroup.y * params.groups_per_row + workgroup.x) * 64u + lane;
    if at >= params.fours {
        return;
    }
    let words = half[at];
    let h = vec4(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
    let field = (h >> vec4(10u)) & vec4(31u);
    let fraction = h & vec4(1023u);
    // Halves that are subnormal are moved up, so that all have their leading one at bit 23.
    let lead = firstLeadingBit(max(fraction, vec4(1u)));
    let normal = field > vec4(0u);
    let mantissa = select(fraction << (vec4(23u) - lead), (fraction | vec4(1024u)) << vec4(13u), normal);
    let e = select(vec4<i32>(lead) - 24, vec4<i32>(field) - 15, normal) + exponent[at / params.run] + 127;
    // What is subnormal in f32 loses bits, rounded to nearest, ties to even.
    let shift = vec4<u32>(clamp(1 - e, vec4(1), vec4(25)));
    let odd = (mantissa >> shift) & vec4(1u);
    let small = (mantissa + (vec4(1u) << (shift - 1u)) - 1u + odd) >> shift;
    var bits = select(small, (vec4<u32>(max(e, vec4(1))) << vec4(23u)) + (mantissa & vec4(0x7fffffu)), e > vec4(0));
    bits = select(bits, vec4(0x7f800000u), e >= vec4(255));
    bits = select(bits, vec4(0u), (h & vec4(0x7fffu)) == vec4(0u));
    bits = select(bits, vec4(0x7f800000u) | (fraction << vec4(13u)), field == vec4(31u));
    x[at] = bits | ((h & vec4(0x8000u)) << vec4(16u));
}
