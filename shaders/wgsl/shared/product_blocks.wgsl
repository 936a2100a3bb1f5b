// Blocks of 4 x 4 of the operands of a product with any strides; quad_a and quad_b give four numbers of each.

const FOUR = vec4(0u, 1u, 2u, 3u);

// The block of 4 x 4 that an invocation loads of each slice.
struct Block {
    // Where its four rows (or columns) are in memory; those beyond the last repeat it, and are not stored.
    lines: vec4<u32>,
    // Which four rows (or columns) of the tile these are.
    quad: u32,
    // Its first depth within a slice, and the distance between depths in memory.
    depth: u32,
    step: u32,
    // Whether depths are neighbours in memory, not rows (or columns).
    along_k: bool,
    of_a: bool,
}

// The block of an invocation, the lane-th of those that load of a (or of b), in a tile that begins at this row (or column).
// Together they load four times fours depths.
fn block_of(of_a: bool, lane: u32, fours: u32, corner: u32, batch: u32) -> Block {
    let step = select(params.b_row, params.a_column, of_a);
    let along_k = step == 1u;
    let quad = select(lane % 16u, lane / fours, along_k);
    let depth = 4u * select(lane / 16u, lane % fours, along_k);
    let last = select(params.n, params.m, of_a) - 1u;
    let line = select(params.b_column, params.a_row, of_a);
    let begin = batch * select(params.b_batch, params.a_batch, of_a);
    let lines = begin + line * min(corner + 4u * quad + FOUR, vec4(last));
    return Block(lines, quad, depth, step, along_k, of_a);
}

// Its numbers of the slice from start on, a depth in each column; zeros beyond the last depth.
fn load(block: Block, start: u32) -> mat4x4<f32> {
    let depth = start + block.depth;
    let depths = block.step * min(depth + FOUR, vec4(params.k - 1u));
    let x = block.lines;
    // Quad i is at[i]; where it is a vec4 in memory, its first number tells all.
    var at0 = x + depths.x;
    var at1 = x + depths.y;
    var at2 = x + depths.z;
    var at3 = x + depths.w;
    if block.along_k {
        at0 = x.x + depths;
        at1 = x.y + depths;
        at2 = x.z + depths;
        at3 = x.w + depths;
    }
    var found: mat4x4<f32>;
    if block.of_a {
        found = mat4x4<f32>(quad_a(at0), quad_a(at1), quad_a(at2), quad_a(at3));
    } else {
        found = mat4x4<f32>(quad_b(at0), quad_b(at1), quad_b(at2), quad_b(at3));
    }
    if block.along_k {
        found = transpose(found);
    }
    if depth + 4u > params.k {
        let inside = depth + FOUR < vec4(params.k);
        found = mat4x4<f32>(
            select(vec4(0.0), found[0], inside.x),
            select(vec4(0.0), found[1], inside.y),
            select(vec4(0.0), found[2], inside.z),
            select(vec4(0.0), found[3], inside.w),
        );
    }
    return found;
}
