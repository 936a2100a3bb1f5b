// A column of four rows of the slopes along the output.
fn quad_of_d_out(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(d_out[at.x], d_out[at.y], d_out[at.z], d_out[at.w]);
}
