// As attention_unrolled, of slopes: read from d_out, stored in d_qkv.

//#include "attention_d_out"
//#include "attention_unrolled"

fn block_of_d_out(rows: vec4<u32>, at: Columns) -> Block {
    var block = Block();
    block.c0 = quad_of_d_out(rows + at.low.x);
    block.c1 = quad_of_d_out(rows + at.low.y);
    block.c2 = quad_of_d_out(rows + at.low.z);
    block.c3 = quad_of_d_out(rows + at.low.w);
    if QUADS == 8u {
        block.c4 = quad_of_d_out(rows + at.high.x);
        block.c5 = quad_of_d_out(rows + at.high.y);
        block.c6 = quad_of_d_out(rows + at.high.z);
        block.c7 = quad_of_d_out(rows + at.high.w);
    }
    return block;
}

fn store_quad(at: vec4<u32>, rows: vec4<u32>, column: u32, x: mat4x4<f32>) {
    if column >= params.width {
        return;
    }
    d_qkv[at.x + column] = x[0];
    if rows.y < params.queries {
        d_qkv[at.y + column] = x[1];
    }
    if rows.z < params.queries {
        d_qkv[at.z + column] = x[2];
    }
    if rows.w < params.queries {
        d_qkv[at.w + column] = x[3];
    }
}
