// Tiles of 32 tokens by 32 others in workgroup memory.

// 8 vec4 of each of the 32 tokens whose rows are made.
var<workgroup> tile_a: array<vec4<f32>, 256>;
// The same of those that are walked over, with a gap after every fourth one against bank conflicts.
var<workgroup> tile_b: array<vec4<f32>, 264>;
// Weights: 8 vec4 of the tokens walked over for each of the 32 tokens whose rows are made.
var<workgroup> weights: array<vec4<f32>, 256>;
// Eight numbers for each of 32 queries.
var<workgroup> parts: array<f32, 256>;

fn quad_a(at: u32) -> mat4x4<f32> {
    return mat4x4<f32>(tile_a[at], tile_a[at + 8u], tile_a[at + 16u], tile_a[at + 24u]);
}

fn quad_b(at: u32) -> mat4x4<f32> {
    return mat4x4<f32>(tile_b[at], tile_b[at + 8u], tile_b[at + 16u], tile_b[at + 24u]);
}

fn quad_w(at: u32) -> mat4x4<f32> {
    return mat4x4<f32>(weights[at], weights[at + 8u], weights[at + 16u], weights[at + 24u]);
}

// Four rows' weights of four tokens.
fn put_weights(p: mat4x4<f32>, at: u32) {
    weights[at] = p[0];
    weights[at + 8u] = p[1];
    weights[at + 16u] = p[2];
    weights[at + 24u] = p[3];
}
