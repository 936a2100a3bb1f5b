// out = f(a b + bias) + extra, f one of identity, ReLU, GELU
//
// a [m, k] with any strides (so a transpose costs nothing), b [k, n], bias [n], extra [m, n] and out
// [m, n] row-major, n a multiple of 4. Each term is there if its flag is set. side takes a b + bias
// [m, n] (SIDE), what f is applied to, or the column sums of b [n] (SUMS). Rows of b may lie further
// apart than their length (b_row, in vec4).
// Grid: x over blocks of 64 columns, y over blocks of 8 rows, z over the batch. An invocation makes a
// tile of 8 x 16 in registers; those of the first rows make the column sums.
// Workgroup memory: none, and so no barriers.
// Accumulation order: k ascending, one sum per element.
// How it got fast, on SwiftShader: (1) gemm_nn and gemm_tn, with tiles of 8 x 8 and four of k at a
// time. (2) Four lanes multiply and add in 1.1 ns there, but load a number each in 9 ns, one lane
// after the other. So a larger tile: 24 loads for 128 products instead of 32; beyond 32 vectors of
// sums they are spilled. Rows' places are added up in the loop and not carried around it: a fifth.
// (3) Branches skip nothing there: what activations take is not in the text for products without.

alias Elem = vec4<f32>;

//#include "erf"
//#include "product_flags"

// 0 if no activation is asked for.
const ACTIVATIONS = 1u; //#plain: const ACTIVATIONS = 0u;

struct Params {
    m: u32,
    n: u32,
    k: u32,
    a_row: u32,
    a_column: u32,
    b_row: u32,
    a_batch: u32,
    b_batch: u32,
    flags: u32,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> extra: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> side: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = 8u * id.y;
    let column = 4u * id.x;
    // What lies outside is computed as a repetition of the last row or column, and not stored.
    let last = vec4(params.m - 1u);
    let upper = id.z * params.a_batch + params.a_row * min(vec4(row, row + 1u, row + 2u, row + 3u), last);
    let lower = id.z * params.a_batch + params.a_row * min(vec4(row + 4u, row + 5u, row + 6u, row + 7u), last);
    let columns = vec4(column, column + 1u, column + 2u, column + 3u);
    let y_at = id.z * params.b_batch + min(columns, vec4(params.n / 4u - 1u));
    var sum00 = vec4(0.0);
    var sum01 = vec4(0.0);
    var sum02 = vec4(0.0);
    var sum03 = vec4(0.0);
    var sum10 = vec4(0.0);
    var sum11 = vec4(0.0);
    var sum12 = vec4(0.0);
    var sum13 = vec4(0.0);
    var sum20 = vec4(0.0);
    var sum21 = vec4(0.0);
    var sum22 = vec4(0.0);
    var sum23 = vec4(0.0);
    var sum30 = vec4(0.0);
    var sum31 = vec4(0.0);
    var sum32 = vec4(0.0);
    var sum33 = vec4(0.0);
    var sum40 = vec4(0.0);
    var sum41 = vec4(0.0);
    var sum42 = vec4(0.0);
    var sum43 = vec4(0.0);
    var sum50 = vec4(0.0);
    var sum51 = vec4(0.0);
    var sum52 = vec4(0.0);
    var sum53 = vec4(0.0);
    var sum60 = vec4(0.0);
    var sum61 = vec4(0.0);
    var sum62 = vec4(0.0);
    var sum63 = vec4(0.0);
    var sum70 = vec4(0.0);
    var sum71 = vec4(0.0);
    var sum72 = vec4(0.0);
    var sum73 = vec4(0.0);
    for (var k = 0u; k < params.k; k++) {
        let at = k * params.b_row;
        let y0 = b[at + y_at.x];
        let y1 = b[at + y_at.y];
        let y2 = b[at + y_at.z];
        let y3 = b[at + y_at.w];
        let x_at = k * params.a_column;
        let x0 = a[x_at + upper.x];
        sum00 += x0 * y0;
        sum01 += x0 * y1;
        sum02 += x0 * y2;
        sum03 += x0 * y3;
        let x1 = a[x_at + upper.y];
        sum10 += x1 * y0;
        sum11 += x1 * y1;
        sum12 += x1 * y2;
        sum13 += x1 * y3;
        let x2 = a[x_at + upper.z];
        sum20 += x2 * y0;
        sum21 += x2 * y1;
        sum22 += x2 * y2;
        sum23 += x2 * y3;
        let x3 = a[x_at + upper.w];
        sum30 += x3 * y0;
        sum31 += x3 * y1;
        sum32 += x3 * y2;
        sum33 += x3 * y3;
        let x4 = a[x_at + lower.x];
        sum40 += x4 * y0;
        sum41 += x4 * y1;
        sum42 += x4 * y2;
        sum43 += x4 * y3;
        let x5 = a[x_at + lower.y];
        sum50 += x5 * y0;
        sum51 += x5 * y1;
        sum52 += x5 * y2;
        sum53 += x5 * y3;
        let x6 = a[x_at + lower.z];
        sum60 += x6 * y0;
        sum61 += x6 * y1;
        sum62 += x6 * y2;
        sum63 += x6 * y3;
        let x7 = a[x_at + lower.w];
        sum70 += x7 * y0;
        sum71 += x7 * y1;
        sum72 += x7 * y2;
        sum73 += x7 * y3;
    }
    let bias0 = bias_of(column);
    let bias1 = bias_of(column + 1u);
    let bias2 = bias_of(column + 2u);
    let bias3 = bias_of(column + 3u);
    finish(sum00, bias0, id.z, row, column);
    finish(sum10, bias0, id.z, row + 1u, column);
    finish(sum20, bias0, id.z, row + 2u, column);
    finish(sum30, bias0, id.z, row + 3u, column);
    finish(sum40, bias0, id.z, row + 4u, column);
    finish(sum50, bias0, id.z, row + 5u, column);
    finish(sum60, bias0, id.z, row + 6u, column);
    finish(sum70, bias0, id.z, row + 7u, column);
    finish(sum01, bias1, id.z, row, column + 1u);
    finish(sum11, bias1, id.z, row + 1u, column + 1u);
    finish(sum21, bias1, id.z, row + 2u, column + 1u);
    finish(sum31, bias1, id.z, row + 3u, column + 1u);
    finish(sum41, bias1, id.z, row + 4u, column + 1u);
    finish(sum51, bias1, id.z, row + 5u, column + 1u);
    finish(sum61, bias1, id.z, row + 6u, column + 1u);
    finish(sum71, bias1, id.z, row + 7u, column + 1u);
    finish(sum02, bias2, id.z, row, column + 2u);
    finish(sum12, bias2, id.z, row + 1u, column + 2u);
    finish(sum22, bias2, id.z, row + 2u, column + 2u);
    finish(sum32, bias2, id.z, row + 3u, column + 2u);
    finish(sum42, bias2, id.z, row + 4u, column + 2u);
    finish(sum52, bias2, id.z, row + 5u, column + 2u);
    finish(sum62, bias2, id.z, row + 6u, column + 2u);
    finish(sum72, bias2, id.z, row + 7u, column + 2u);
    finish(sum03, bias3, id.z, row, column + 3u);
    finish(sum13, bias3, id.z, row + 1u, column + 3u);
    finish(sum23, bias3, id.z, row + 2u, column + 3u);
    finish(sum33, bias3, id.z, row + 3u, column + 3u);
    finish(sum43, bias3, id.z, row + 4u, column + 3u);
    finish(sum53, bias3, id.z, row + 5u, column + 3u);
    finish(sum63, bias3, id.z, row + 6u, column + 3u);
    finish(sum73, bias3, id.z, row + 7u, column + 3u);
    // The first rows' invocations make the column sums.
    let rows = select(0u, params.k, row == 0u && (params.flags & SUMS) != 0u);
    var total0 = vec4(0.0);
    var total1 = vec4(0.0);
    var total2 = vec4(0.0);
    var total3 = vec4(0.0);
    for (var k = 0u; k < rows; k++) {
        let at = k * params.b_row;
        total0 += b[at + y_at.x];
        total1 += b[at + y_at.y];
        total2 += b[at + y_at.z];
        total3 += b[at + y_at.w];
    }
    if rows > 0u {
        store_sum(total0, id.z, column);
        store_sum(total1, id.z, column + 1u);
        store_sum(total2, id.z, column + 2u);
        store_sum(total3, id.z, column + 3u);
    }
}

fn bias_of(column: u32) -> vec4<f32> {
    if (params.flags & BIAS) == 0u {
        return vec4(0.0);
    }
    return bias[min(column, params.n / 4u - 1u)];
}

fn store_sum(sum: vec4<f32>, batch: u32, column: u32) {
    let columns = params.n / 4u;
    if column < columns {
        side[batch * columns + column] = sum;
    }
}

fn finish(sum: vec4<f32>, shift: vec4<f32>, batch: u32, row: u32, column: u32) {
    let columns = params.n / 4u;
    if row >= params.m || column >= columns {
        return;
    }
    let at = (batch * params.m + row) * columns + column;
    var x = sum + shift;
    if ACTIVATIONS != 0u {
        if (params.flags & SIDE) != 0u {
            side[at] = x;
        }
        if (params.flags & RELU) != 0u {
            x = max(x, vec4(0.0));
        }
        if (params.flags & GELU) != 0u {
            x = 0.5 * x * (1.0 + erf(x * 0.70710678));
        }
    }
    if (params.flags & EXTRA) != 0u {
        x += extra[at];
    }
    out[at] = x;
}
