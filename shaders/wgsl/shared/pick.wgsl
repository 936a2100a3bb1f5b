// Column i, which an index would take by way of memory.
fn pick(m: mat4x4<f32>, i: u32) -> vec4<f32> {
    return select(select(m[0], m[1], i == 1u), select(m[2], m[3], i == 3u), i >= 2u);
}
