// Of what rowsum(d_out out) is made.
fn quad_of_out(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(out[at.x], out[at.y], out[at.z], out[at.w]);
}

// The product of each row of x with the same row of y.
fn row_sums(x: mat4x4<f32>, y: mat4x4<f32>) -> vec4<f32> {
    return vec4(dot(x[0], y[0]), dot(x[1], y[1]), dot(x[2], y[2]), dot(x[3], y[3]));
}
