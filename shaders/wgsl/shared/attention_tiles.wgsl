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

// s and the products of four rows of tile_b with four of tile_a, of 32 columns. Not a loop: NVIDIA's compiler leaves
// loops as they are, and slower.
fn add_scores(s: mat4x4<f32>, a: u32, b: u32) -> mat4x4<f32> {
    var sum = s;
    sum += transpose(quad_b(b)) * quad_a(a);
    sum += transpose(quad_b(b + 1u)) * quad_a(a + 1u);
    sum += transpose(quad_b(b + 2u)) * quad_a(a + 2u);
    sum += transpose(quad_b(b + 3u)) * quad_a(a + 3u);
    sum += transpose(quad_b(b + 4u)) * quad_a(a + 4u);
    sum += transpose(quad_b(b + 5u)) * quad_a(a + 5u);
    sum += transpose(quad_b(b + 6u)) * quad_a(a + 6u);
    sum += transpose(quad_b(b + 7u)) * quad_a(a + 7u);
    return sum;
}

// The sum of 32 tokens of tile_b, four columns of each, by four rows of weights.
fn weighted_sum(w: u32, b: u32) -> mat4x4<f32> {
    var sum = quad_b(b) * quad_w(w);
    sum += quad_b(b + 33u) * quad_w(w + 1u);
    sum += quad_b(b + 66u) * quad_w(w + 2u);
    sum += quad_b(b + 99u) * quad_w(w + 3u);
    sum += quad_b(b + 132u) * quad_w(w + 4u);
    sum += quad_b(b + 165u) * quad_w(w + 5u);
    sum += quad_b(b + 198u) * quad_w(w + 6u);
    sum += quad_b(b + 231u) * quad_w(w + 7u);
    return sum;
}
