// Blocks of columns that are loaded in loops.

//#include "attention_block"

// 0 if all heads have at most 32 columns.
const WIDE_HEADS = 1u; //#narrow, masked_narrow: const WIDE_HEADS = 0u;

// A column of four rows.
fn quad_of_q(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(q[at.x], q[at.y], q[at.z], q[at.w]);
}

fn quad_of_k(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(k[at.x], k[at.y], k[at.z], k[at.w]);
}

fn quad_of_v(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(v[at.x], v[at.y], v[at.z], v[at.w]);
}

// `count` columns of four rows; the others are 0.
fn block_of_q(rows: vec4<u32>, count: u32) -> Block {
    var block = Block();
    for (var i = 0u; i < count; i++) {
        put(&block, i, quad_of_q(rows + i));
    }
    return block;
}

fn block_of_k(rows: vec4<u32>, count: u32) -> Block {
    var block = Block();
    for (var i = 0u; i < count; i++) {
        put(&block, i, quad_of_k(rows + i));
    }
    return block;
}

fn block_of_v(rows: vec4<u32>, count: u32) -> Block {
    var block = Block();
    for (var i = 0u; i < count; i++) {
        put(&block, i, quad_of_v(rows + i));
    }
    return block;
}

// Puts a matrix into a block. Written so, and not unrolled, the loops around it stay short.
fn put(block: ptr<function, Block>, column: u32, x: mat4x4<f32>) {
    if column == 0u {
        (*block).c0 = x;
    } else if column == 1u {
        (*block).c1 = x;
    } else if column == 2u {
        (*block).c2 = x;
    } else if column == 3u {
        (*block).c3 = x;
    } else if column == 4u {
        (*block).c4 = x;
    } else if column == 5u {
        (*block).c5 = x;
    } else if column == 6u {
        (*block).c6 = x;
    } else {
        (*block).c7 = x;
    }
}

fn column_of(block: Block, column: u32) -> mat4x4<f32> {
    var x = block.c0;
    if column == 1u {
        x = block.c1;
    } else if column == 2u {
        x = block.c2;
    } else if column == 3u {
        x = block.c3;
    } else if column == 4u {
        x = block.c4;
    } else if column == 5u {
        x = block.c5;
    } else if column == 6u {
        x = block.c6;
    } else if column == 7u {
        x = block.c7;
    }
    return x;
}

// Products of the rows of x and the rows of y; a column for each row of y.
fn times(x: Block, y: Block) -> mat4x4<f32> {
    var s = transpose(x.c0) * y.c0;
    s += transpose(x.c1) * y.c1;
    s += transpose(x.c2) * y.c2;
    s += transpose(x.c3) * y.c3;
    s += transpose(x.c4) * y.c4;
    s += transpose(x.c5) * y.c5;
    s += transpose(x.c6) * y.c6;
    s += transpose(x.c7) * y.c7;
    return s;
}
