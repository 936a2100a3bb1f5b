// Blocks of columns that are loaded, added up and stored without a loop or a branch. Where to, a kernel says by a
// function `store_quad` of its own.

//#include "attention_block"
//#include "attention_params"

// Columns of a unit in vec4: 8, or 4.
const QUADS = 8u; //#slim: const QUADS = 4u;
// 0 if all heads have at most that many columns.
const WIDE_HEADS = 1u; //#narrow, slim: const WIDE_HEADS = 0u;

// Where a unit's columns lie in a row. Those beyond the head repeat its last one.
struct Columns {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn columns_from(first: u32) -> Columns {
    let low = vec4(first, first + 1u, first + 2u, first + 3u);
    let last = vec4(params.width - 1u);
    return Columns(min(low, last), min(low + 4u, last));
}

// With 0 in columns beyond the head.
fn within(x: Block, first: u32) -> Block {
    let low = vec4(first, first + 1u, first + 2u, first + 3u);
    let width = vec4(params.width);
    let a = select(vec4(0.0), vec4(1.0), low < width);
    let b = select(vec4(0.0), vec4(1.0), low + 4u < width);
    return Block(
        x.c0 * a.x,
        x.c1 * a.y,
        x.c2 * a.z,
        x.c3 * a.w,
        x.c4 * b.x,
        x.c5 * b.y,
        x.c6 * b.z,
        x.c7 * b.w,
    );
}

fn quad_of_qkv(at: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
}

fn block_of_qkv(rows: vec4<u32>, at: Columns) -> Block {
    var block = Block();
    block.c0 = quad_of_qkv(rows + at.low.x);
    block.c1 = quad_of_qkv(rows + at.low.y);
    block.c2 = quad_of_qkv(rows + at.low.z);
    block.c3 = quad_of_qkv(rows + at.low.w);
    if QUADS == 8u {
        block.c4 = quad_of_qkv(rows + at.high.x);
        block.c5 = quad_of_qkv(rows + at.high.y);
        block.c6 = quad_of_qkv(rows + at.high.z);
        block.c7 = quad_of_qkv(rows + at.high.w);
    }
    return block;
}

// Products of the rows of x and the rows of y; a column for each row of y.
fn times(x: Block, y: Block) -> mat4x4<f32> {
    var s = transpose(x.c0) * y.c0;
    s += transpose(x.c1) * y.c1;
    s += transpose(x.c2) * y.c2;
    s += transpose(x.c3) * y.c3;
    if QUADS == 8u {
        s += transpose(x.c4) * y.c4;
        s += transpose(x.c5) * y.c5;
        s += transpose(x.c6) * y.c6;
        s += transpose(x.c7) * y.c7;
    }
    return s;
}

// Adds to each row of the sum the rows of x, weighted by the row's column of w.
fn plus(sum: Block, x: Block, w: mat4x4<f32>) -> Block {
    var next = sum;
    next.c0 += x.c0 * w;
    next.c1 += x.c1 * w;
    next.c2 += x.c2 * w;
    next.c3 += x.c3 * w;
    if QUADS == 8u {
        next.c4 += x.c4 * w;
        next.c5 += x.c5 * w;
        next.c6 += x.c6 * w;
        next.c7 += x.c7 * w;
    }
    return next;
}

// Writes four rows, as many as there are, of the columns that there are.
fn store(at: vec4<u32>, rows: vec4<u32>, first: u32, x: Block) {
    store_quad(at, rows, first, x.c0);
    store_quad(at, rows, first + 1u, x.c1);
    store_quad(at, rows, first + 2u, x.c2);
    store_quad(at, rows, first + 3u, x.c3);
    if QUADS == 8u {
        store_quad(at, rows, first + 4u, x.c4);
        store_quad(at, rows, first + 5u, x.c5);
        store_quad(at, rows, first + 6u, x.c6);
        store_quad(at, rows, first + 7u, x.c7);
    }
}
