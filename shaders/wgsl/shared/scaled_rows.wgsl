// A column of four rows, each times its factor.
fn scaled_rows(x: mat4x4<f32>, factor: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x[0] * factor.x, x[1] * factor.y, x[2] * factor.z, x[3] * factor.w);
}
