// Up to 32 columns of 4 rows: column r of each matrix is row r.
struct Block {
    c0: mat4x4<f32>,
    c1: mat4x4<f32>,
    c2: mat4x4<f32>,
    c3: mat4x4<f32>,
    c4: mat4x4<f32>,
    c5: mat4x4<f32>,
    c6: mat4x4<f32>,
    c7: mat4x4<f32>,
}
