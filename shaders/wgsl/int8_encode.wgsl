// scale[b] = max |x[i]| / 127 over i in block b; byte[i] = round(x[i] / scale[b])
//
// x a vector of a length that is a multiple of 4, in blocks of 256; byte as long, two's complement,
// four in each word, the first in the lowest bits; scale one per block, 0 where all magnitudes are
// below 127 * 2^-126, and NaN where an element is not finite. Rounding is to nearest, ties to even.
// Grid: row after row over blocks, a workgroup for each, 4 elements per invocation.
// Workgroup memory: a maximum.
// Accumulation order: none; a maximum does not depend on it.
// How it got fast: (1) each element is read once and kept in a register.

struct Params {
    fours: u32,
    groups_per_row: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> byte: array<u32>;
@group(0) @binding(2) var<storage, read_write> scale: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> largest: atomic<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = workgroup.y * params.groups_per_row + workgroup.x;
    let at = block * 64u + lane;
    if lane == 0u {
        atomicStore(&largest, 0u);
    }
    workgroupBarrier();
    var value = vec4(0.0);
    if at < params.fours {
        value = x[at];
    }
    // Magnitudes in order of their bits, infinity and NaN last.
    let magnitude = bitcast<vec4<u32>>(value) & vec4(0x7fffffffu);
    atomicMax(&largest, max(max(magnitude.x, magnitude.y), max(magnitude.z, magnitude.w)));
    workgroupBarrier();
    let top = atomicLoad(&largest);
    // Quotients below the smallest normal number are 0 on some adapters: let them be so on all.
    let step = bitcast<f32>(top) / 127.0;
    let usable = top >= 0x03fe0000u && top < 0x7f800000u;
    var q = vec4(0);
    if usable {
        q = vec4<i32>(clamp(round(value / step), vec4(-127.0), vec4(127.0)));
    }
    if at < params.fours {
        let bytes = bitcast<vec4<u32>>(q) & vec4(255u);
        byte[at] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
        if lane == 0u {
            scale[block] = select(select(0u, 0x7fc00000u, top >= 0x7f800000u), bitcast<u32>(step), usable);
        }
    }
}
