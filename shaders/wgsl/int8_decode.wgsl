// x[i] = byte[i] scale[b], i in block b
//
// The way back of int8_encode: byte four in each word, scale one per block of 256, x as long as byte.
// Grid: row after row over blocks of 256 elements, 4 per invocation.
// Workgroup memory: none.
// Accumulation order: each element stands alone.
// How it got fast: it did not have to.

struct Params {
    fours: u32,
    groups_per_row: u32,
}

@group(0) @binding(0) var<storage, read> byte: array<u32>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = (workgroup.y * params.groups_per_row + workgroup.x) * 64u + lane;
    if at >= params.fours {
        return;
    }
    // Each byte up to the sign's place, and down again with the sign.
    let q = bitcast<vec4<i32>>(vec4(byte[at]) << vec4(24u, 16u, 8u, 0u)) >> vec4(24u);
    x[at] = vec4<f32>(q) * scale[at / 64u];
}
