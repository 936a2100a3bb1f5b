// parts = for each tap and channel that the kernel sees, and each channel made, the sum over a piece of the positions of what
// it sees there times the gradient
//
// Operands as for convolution_weights.
// Grid: a workgroup per 64 rows of taps and channels, 64 made channels and piece, counted row after row of the grid; z over
// groups. 64 invocations make a tile of 64 x 64, 8 x 8 in the registers of each.
// Workgroup memory: 8.5 KiB, two slices of 8 positions.
// Accumulation order: positions ascending, one sum per number; convolution_weights_total adds the pieces up.
// How it got fast: (1) as gemm_tiled. An invocation loads 16 numbers of one position, so that it finds one place a slice.

//#include "convolution_params"
//#include "convolution_reads"
//#include "product_tile"

@group(0) @binding(0) var<storage, read> copy: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gradient: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let quads = (params.made + 3u) / 4u;
    // In vec4 of four rows.
    let rows = params.all_taps * params.quads;
    let across = (quads + 15u) / 16u;
    let down = (rows + 15u) / 16u;
    let number = workgroup.y * workgroups.x + workgroup.x;
    let left = number % across * 16u;
    let top = number / across % down * 16u;
    let piece = number / across / down;
    let begin = piece * params.piece;
    let end = min(begin + params.piece, params.positions);
    if begin >= end {
        return;
    }
    let group = workgroup.z;
    let of_copy = local < 32u;
    let depth = local % 32u / 4u;
    // Every fourth vec4 of the tile's rows or columns; those beyond the last repeat it, and are not stored.
    let first = local % 4u;
    var lines = group * quads + min(left + first + vec4(0u, 4u, 8u, 12u), vec4(quads - 1u));
    if of_copy {
        let row = min(top + first + vec4(0u, 4u, 8u, 12u), vec4(rows - 1u));
        lines = group * params.quads + vec4(reads(row.x), reads(row.y), reads(row.z), reads(row.w));
    }
    let place = depth * PITCH + first + select(COLUMNS, 0u, of_copy);
    let row_quad = local / 8u;
    let column_quad = local % 8u;
    var sums = Sums();
    var next = load(of_copy, lines, begin + depth, end);
    var slice = 0u;
    for (var start = begin; start < end; start += DEPTH) {
        put(next, slice + place, 4u);
        workgroupBarrier();
        // The next one is on its way while this slice is used.
        next = load(of_copy, lines, start + DEPTH + depth, end);
        let x = slice + row_quad;
        let y = slice + COLUMNS + column_quad;
        add_two(&sums, x, y, false);
        add_two(&sums, x + 2u * PITCH, y + 2u * PITCH, false);
        add_two(&sums, x + 4u * PITCH, y + 4u * PITCH, false);
        add_two(&sums, x + 6u * PITCH, y + 6u * PITCH, false);
        slice = SECOND - slice;
    }
    // Half of the tile at a time through workgroup memory: neighbours then store neighbouring numbers.
    for (var half = 0u; half < 2u; half++) {
        workgroupBarrier();
        put(half_of(sums.upper_left, sums.lower_left, half), 64u * row_quad + column_quad, 16u);
        put(half_of(sums.upper_right, sums.lower_right, half), 64u * row_quad + column_quad + 8u, 16u);
        workgroupBarrier();
        for (var at = local; at < 512u; at += 64u) {
            let row = 4u * top + 32u * half + at / 16u;
            let column = left + at % 16u;
            if row < 4u * rows && column < quads {
                parts[((piece * workgroups.z + group) * 4u * rows + row) * quads + column] = slices[at];
            }
        }
    }
}

// Sixteen numbers of a position; zeros beyond the piece.
fn load(of_copy: bool, lines: vec4<u32>, position: u32, end: u32) -> mat4x4<f32> {
    if position >= end {
        return mat4x4<f32>();
    }
    let place = place_of(position);
    if of_copy {
        let x = lines + source_of(place);
        return mat4x4<f32>(copy[x.x], copy[x.y], copy[x.z], copy[x.w]);
    }
    let x = lines + target_of(place);
    return mat4x4<f32>(gradient[x.x], gradient[x.y], gradient[x.z], gradient[x.w]);
}
