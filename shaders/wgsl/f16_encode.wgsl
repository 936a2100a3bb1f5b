// exponent[r] = exponent of the largest finite magnitude of run r, less 14; half[i] = f16(x[i] 2^-exponent[r])
//
// x a vector of f32, taken as bits, of a length that is a multiple of 4, in runs of `run` vec4; half as
// long, four in each pair of words, the first in the lowest bits; exponent one per run, 0 for a run of
// zeros. Rounding is to nearest, ties to even. Infinities and NaNs have no say in the exponent; every
// NaN becomes 0x7e00. In a run with any of them, or of the largest exponent, what would round up to
// 2^15 is rounded down.
// Grid: row after row over runs, a workgroup for each.
// Workgroup memory: two maxima.
// Accumulation order: none; a maximum does not depend on it.
// How it got fast: a run is read twice, the second time from a cache. Integers only: so every adapter
// gets the same bits, also of numbers that are too small for some.

struct Params {
    fours: u32,
    run: u32,
    runs: u32,
    groups_per_row: u32,
}

const INFINITY = 0x7f800000u;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> half: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> exponent: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> largest: atomic<u32>;
var<workgroup> largest_finite: atomic<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let run = workgroup.y * params.groups_per_row + workgroup.x;
    // Workgroups behind the last run have nothing to do, but reach the barriers.
    let begin = min(min(run, params.runs) * params.run, params.fours);
    let end = min(begin + params.run, params.fours);
    if lane == 0u {
        atomicStore(&largest, 0u);
        atomicStore(&largest_finite, 0u);
    }
    workgroupBarrier();
    var all = vec4(0u);
    var finite = vec4(0u);
    for (var at = begin + lane; at < end; at += 64u) {
        let magnitude = x[at] & vec4(0x7fffffffu);
        all = max(all, magnitude);
        finite = max(finite, select(vec4(0u), magnitude, magnitude < vec4(INFINITY)));
    }
    atomicMax(&largest, max(max(all.x, all.y), max(all.z, all.w)));
    atomicMax(&largest_finite, max(max(finite.x, finite.y), max(finite.z, finite.w)));
    workgroupBarrier();
    let top = atomicLoad(&largest_finite);
    var k = 0;
    if top >= 0x800000u {
        k = i32(top >> 23u) - 141;
    } else if top > 0u {
        k = i32(firstLeadingBit(top)) - 163;
    }
    let careful = atomicLoad(&largest) >= INFINITY || k >= 113;
    for (var at = begin + lane; at < end; at += 64u) {
        let h = halves(x[at], k, careful);
        half[at] = vec2(h.x | (h.y << 16u), h.z | (h.w << 16u));
    }
    if lane == 0u && run < params.runs {
        exponent[run] = k;
    }
}

fn halves(bits: vec4<u32>, k: i32, careful: bool) -> vec4<u32> {
    let magnitude = bits & vec4(0x7fffffffu);
    let fraction = bits & vec4(0x7fffffu);
    let field = magnitude >> vec4(23u);
    // Numbers that are subnormal in f32 are moved up, so that all have their leading one at bit 23.
    let lead = firstLeadingBit(max(fraction, vec4(1u)));
    let normal = field > vec4(0u);
    let mantissa = select(fraction << (vec4(23u) - lead), fraction | vec4(0x800000u), normal);
    let e = select(vec4<i32>(lead) - 149, vec4<i32>(field) - 127, normal) - k;
    // 11 bits stay of a half that is normal, fewer of one that is not.
    let shift = vec4<u32>(clamp(-1 - e, vec4(13), vec4(25)));
    let odd = (mantissa >> shift) & vec4(1u);
    let rounded = (mantissa + (vec4(1u) << (shift - 1u)) - 1u + odd) >> shift;
    var h = rounded + (vec4<u32>(max(e + 14, vec4(0))) << vec4(10u));
    h = select(h, vec4(0u), magnitude == vec4(0u));
    if careful {
        h = min(h, vec4(0x77ffu));
    }
    h = select(h, vec4(0x7c00u), magnitude == vec4(INFINITY));
    h |= (bits >> vec4(16u)) & vec4(0x8000u);
    return select(h, vec4(0x7e00u), magnitude > vec4(INFINITY));
}
