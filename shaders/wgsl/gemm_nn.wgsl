// out = f(a b + bias) + extra, f one of identity, ReLU, GELU
//
// a [m, k], b [k, n], bias [n], extra [m, n], out [m, n], side [m, n]: row-major; k and n multiples
// of 4. side takes a b + bias, what f is applied to, for the backward pass. Rows of a and b may lie
// further apart than their length (a_row, b_row, in vec4).
// Grid: x over blocks of 64 columns, y over blocks of 8 rows, z over the batch. An invocation makes a
// tile of 8 x 8 in registers.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: four products, then their sum to the total, k ascending.
// How it got fast: (1) one element per invocation, two scalar loads per product; (2) 8 x 8 per
// invocation, vec4 loads along k of a and along n of b: 16 loads per 256 products; fused
// multiply-add.

alias Elem = vec4<f32>;

//#include "erf"
//#include "product_rows"

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<Four>;
@group(0) @binding(2) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> extra: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> side: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let columns = params.n / 4u;
    let row = id.y * 8u;
    let column = id.x * 2u;
    // What lies outside is computed as a repetition of the last row or column, and not stored.
    let last = params.m - 1u;
    let a_at = id.z * params.a_batch;
    let upper = a_at + params.a_row * min(vec4(row, row + 1u, row + 2u, row + 3u), vec4(last));
    let lower = a_at + params.a_row * min(vec4(row + 4u, row + 5u, row + 6u, row + 7u), vec4(last));
    var left = id.z * params.b_batch + min(column, columns - 1u);
    var right = id.z * params.b_batch + min(column + 1u, columns - 1u);
    // Each holds four rows of four columns: row i is sum[i].
    var sum00 = mat4x4<f32>();
    var sum01 = mat4x4<f32>();
    var sum10 = mat4x4<f32>();
    var sum11 = mat4x4<f32>();
    for (var k = 0u; k < params.k / 4u; k++) {
        let x0 = mat4x4<f32>(a[upper.x + k], a[upper.y + k], a[upper.z + k], a[upper.w + k]);
        let x1 = mat4x4<f32>(a[lower.x + k], a[lower.y + k], a[lower.z + k], a[lower.w + k]);
        let step = params.b_row;
        let y0 = mat4x4<f32>(four(b[left]), four(b[left + step]), four(b[left + 2u * step]), four(b[left + 3u * step]));
        sum00 += y0 * x0;
        sum10 += y0 * x1;
        let y1 = mat4x4<f32>(four(b[right]), four(b[right + step]), four(b[right + 2u * step]), four(b[right + 3u * step]));
        sum01 += y1 * x0;
        sum11 += y1 * x1;
        left += 4u * step;
        right += 4u * step;
    }
    // A loop that compilers cannot unroll: what follows would be there sixteen times, and take them long.
    let pieces = min(4u, 4u * params.m);
    for (var i = 0u; i < pieces; i++) {
        finish(pick(sum00, i), id.z, row + i, 2u * id.x);
        finish(pick(sum01, i), id.z, row + i, 2u * id.x + 1u);
        finish(pick(sum10, i), id.z, row + 4u + i, 2u * id.x);
        finish(pick(sum11, i), id.z, row + 4u + i, 2u * id.x + 1u);
    }
}

fn finish(sum: vec4<f32>, batch: u32, row: u32, column: u32) {
    let columns = params.n / 4u;
    if row >= params.m || column >= columns {
        return;
    }
    let at = (batch * params.m + row) * columns + column;
    var x = sum;
    if (params.flags & BIAS) != 0u {
        x += bias[column];
    }
    if (params.flags & SIDE) != 0u {
        side[at] = x;
    }
    if (params.flags & RELU) != 0u {
        x = max(x, vec4(0.0));
    }
    if (params.flags & GELU) != 0u {
        x = 0.5 * x * (1.0 + erf(x * 0.70710678));
    }
    if (params.flags & EXTRA) != 0u {
        x += extra[at];
    }
    out[at] = x;
}
