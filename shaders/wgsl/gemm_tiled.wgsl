// out = f(a b + bias) * g'(extra) + extra, with f and g one of identity, ReLU, GELU
//
// a [m, k] and b [k, n] with any strides (so a transpose costs nothing), bias [n], extra [m, n] and
// out [m, n] row-major. Each term is there if its flag is set; extra is either what the activation g
// was applied to (SLOPE flags) or a summand (EXTRA). side takes a b + bias [m, n] (SIDE) or the
// column sums of b [n] (SUMS).
// Grid: x over blocks of 64 columns, y over blocks of 64 rows, z over the batch. 64 invocations make a
// tile of 64 x 64, 8 x 8 in the registers of each.
// Workgroup memory: 8 KiB, a slice of 16 along k of the 64 rows and of the 64 columns.
// Accumulation order: k ascending, one sum per element.
// How it got fast: (1) one element per invocation; (2) slices in workgroup memory, each number of a
// and b read from memory once per tile; (3) 8 x 8 per invocation: 4 vec4 read for 64 products; the
// invocations of a row read neighbouring numbers whichever way a and b lie.

//#include "product_strided"

// What a number of b is stored as.
alias Number = f32; //#halves: alias Number = u32;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<Number>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> extra: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> side: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;

const TILE = 64u;
const DEPTH = 16u;
const QUADS = 16u;

// Number kk * QUADS + q holds rows (or columns) 4 q to 4 q + 3 at depth kk.
var<workgroup> a_slice: array<vec4<f32>, 256>;
var<workgroup> b_slice: array<vec4<f32>, 256>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let top = group.y * TILE;
    let left = group.x * TILE;
    let row_quad = 2u * (local / 8u);
    let column_quad = 2u * (local % 8u);
    // Each holds four rows of four columns: row i is sum[i].
    var sum00 = mat4x4<f32>();
    var sum01 = mat4x4<f32>();
    var sum10 = mat4x4<f32>();
    var sum11 = mat4x4<f32>();
    var total0 = vec4(0.0);
    var total1 = vec4(0.0);
    for (var start = 0u; start < params.k; start += DEPTH) {
        for (var i = 0u; i < 4u; i++) {
            let place = local + 64u * i;
            // Neighbouring invocations go along the axis whose stride is 1.
            let a_kk = select(place / QUADS, place % DEPTH, params.a_column == 1u);
            let a_q = select(place % QUADS, place / DEPTH, params.a_column == 1u);
            a_slice[a_kk * QUADS + a_q] = load_a(group.z, top + 4u * a_q, start + a_kk);
            let b_kk = select(place / QUADS, place % DEPTH, params.b_row == 1u);
            let b_q = select(place % QUADS, place / DEPTH, params.b_row == 1u);
            b_slice[b_kk * QUADS + b_q] = load_b(group.z, start + b_kk, left + 4u * b_q);
        }
        workgroupBarrier();
        for (var kk = 0u; kk < DEPTH; kk++) {
            let x0 = a_slice[kk * QUADS + row_quad];
            let x1 = a_slice[kk * QUADS + row_quad + 1u];
            let y0 = b_slice[kk * QUADS + column_quad];
            let y1 = b_slice[kk * QUADS + column_quad + 1u];
            sum00 += mat4x4<f32>(x0.x * y0, x0.y * y0, x0.z * y0, x0.w * y0);
            sum01 += mat4x4<f32>(x0.x * y1, x0.y * y1, x0.z * y1, x0.w * y1);
            sum10 += mat4x4<f32>(x1.x * y0, x1.y * y0, x1.z * y0, x1.w * y0);
            sum11 += mat4x4<f32>(x1.x * y1, x1.y * y1, x1.z * y1, x1.w * y1);
            total0 += y0;
            total1 += y1;
        }
        workgroupBarrier();
    }
    let row = top + 4u * row_quad;
    let column = left + 4u * column_quad;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            finish(sum00[i][j], row + i, column + j, group.z);
            finish(sum01[i][j], row + i, column + 4u + j, group.z);
            finish(sum10[i][j], row + 4u + i, column + j, group.z);
            finish(sum11[i][j], row + 4u + i, column + 4u + j, group.z);
        }
    }
    if row == 0u && (params.flags & SUMS) != 0u {
        for (var j = 0u; j < 4u; j++) {
            if column + j < params.n {
                side[group.z * params.n + column + j] = total0[j];
            }
            if column + 4u + j < params.n {
                side[group.z * params.n + column + 4u + j] = total1[j];
            }
        }
    }
}

// Four rows at one depth; zeros outside.
fn load_a(batch: u32, row: u32, k: u32) -> vec4<f32> {
    let at = batch * params.a_batch + row * params.a_row + k * params.a_column;
    var x = vec4(0.0);
    if k < params.k {
        for (var i = 0u; i < 4u; i++) {
            if row + i < params.m {
                x[i] = a[at + i * params.a_row];
            }
        }
    }
    return x;
}

// Four columns at one depth; zeros outside.
fn load_b(batch: u32, k: u32, column: u32) -> vec4<f32> {
    let at = batch * params.b_batch + k * params.b_row + column * params.b_column;
    var x = vec4(0.0);
    if k < params.k {
        for (var i = 0u; i < 4u; i++) {
            if column + i < params.n {
                x[i] = number(at + i * params.b_column);
            }
        }
    }
    return x;
}

fn number(at: u32) -> f32 {
    return b[at]; //#halves: return unpack2x16float(b[at / 2u])[at % 2u];
}
