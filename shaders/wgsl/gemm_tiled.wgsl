// out = f(a b + bias) * g'(extra) + extra, with f and g one of identity, ReLU, GELU
//
// a [m, k] and b [k, n], each row-major or the transpose of what is (so a transpose costs nothing), bias [n], extra
// [m, n] and out [m, n] row-major. Each term is there if its flag is set; extra is either what the activation g was
// applied to (SLOPE flags) or a summand (EXTRA). side takes a b + bias [m, n] (SIDE) or the column sums of b [n] (SUMS).
// Rows of a, b and out as they lie in memory are multiples of four numbers long; the scalar text takes any.
// Grid: x over blocks of 64 columns, y over blocks of 64 rows, z over the batch. 64 invocations make a tile of 64 x 64,
// 8 x 8 in the registers of each.
// Workgroup memory: 8.5 KiB, two slices of 8 along k of the 64 rows and of the 64 columns.
// Accumulation order: k ascending, one sum per element.
// How it got fast: (1) one element per invocation; (2) slices in workgroup memory, each number of a and b read from
// memory once per tile; (3) 8 x 8 per invocation: 4 vec4 read for 64 products; (4) no array is indexed at run time, loads
// are clamped instead of guarded, results go to memory by way of workgroup memory; (5) half of the invocations load a
// block of 4 x 4 of a and the others one of b, as vec4, while the slice before it is used.

alias Elem = vec4<f32>; //#scalar: alias Elem = f32;
const WIDE = 4u; //#scalar: const WIDE = 1u;

//#include "product_strided"

struct Params {
    //#include "product_params"
}

// What an element of b is stored as.
alias Number = vec4<f32>; //#halves: alias Number = vec2<u32>; //#scalar: alias Number = f32;

@group(0) @binding(0) var<storage, read> a: array<Elem>;
@group(0) @binding(1) var<storage, read> b: array<Number>;
@group(0) @binding(2) var<storage, read> bias: array<Elem>;
@group(0) @binding(3) var<storage, read> extra: array<Elem>;
@group(0) @binding(4) var<storage, read_write> out: array<Elem>;
@group(0) @binding(5) var<storage, read_write> side: array<Elem>;
@group(0) @binding(6) var<uniform> params: Params;

//#include "product_tile"
//#include "product_blocks"

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let top = group.y * TILE;
    let left = group.x * TILE;
    let row_quad = local / 8u;
    let column_quad = local % 8u;
    let summed = group.y == 0u && (params.flags & SUMS) != 0u;
    var sums = Sums();
    let of_a = local < 32u;
    let block = block_of(of_a, local % 32u, 2u, select(left, top, of_a), group.z);
    let place = block.depth * PITCH + block.quad + select(COLUMNS, 0u, of_a);
    var next = load(block, 0u);
    var slice = 0u;
    for (var start = 0u; start < params.k; start += DEPTH) {
        put(next, slice + place, PITCH);
        workgroupBarrier();
        // The next one is on its way while this slice is used.
        next = load(block, start + DEPTH);
        let x = slice + row_quad;
        let y = slice + COLUMNS + column_quad;
        // Not a loop: NVIDIA's compiler leaves loops as they are, a fifth slower.
        add_two(&sums, x, y, summed);
        add_two(&sums, x + 2u * PITCH, y + 2u * PITCH, summed);
        add_two(&sums, x + 4u * PITCH, y + 4u * PITCH, summed);
        add_two(&sums, x + 6u * PITCH, y + 6u * PITCH, summed);
        slice = SECOND - slice;
    }
    // Half of the tile at a time through workgroup memory: neighbours then store neighbouring numbers.
    for (var half = 0u; half < 2u; half++) {
        workgroupBarrier();
        put(half_of(sums.upper_left, sums.lower_left, half), 64u * row_quad + column_quad, 16u);
        put(half_of(sums.upper_right, sums.lower_right, half), 64u * row_quad + column_quad + 8u, 16u);
        workgroupBarrier();
        for (var at = local; at < 32u * TILE / WIDE; at += 64u) {
            let row = top + 32u * half + at / (TILE / WIDE);
            finish(element(at), row, left / WIDE + at % (TILE / WIDE), group.z);
        }
    }
    if summed {
        workgroupBarrier();
        if row_quad == 0u {
            slices[column_quad] = sums.of_left;
            slices[column_quad + 8u] = sums.of_right;
        }
        workgroupBarrier();
        let columns = params.n / WIDE;
        let column = left / WIDE + local;
        if local < TILE / WIDE && column < columns {
            side[group.z * columns + column] = element(local);
        }
    }
}

fn quad_a(at: vec4<u32>) -> vec4<f32> {
    return a[at.x / 4u]; //#scalar: return vec4(a[at.x], a[at.y], a[at.z], a[at.w]);
}

fn quad_b(at: vec4<u32>) -> vec4<f32> {
    let x = b[at.x / 4u]; //#scalar: let x = vec4(b[at.x], b[at.y], b[at.z], b[at.w]);
    return x; //#halves: return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}

fn element(at: u32) -> Elem {
    return slices[at]; //#scalar: return pick(slices[at / 4u], at % 4u);
}
