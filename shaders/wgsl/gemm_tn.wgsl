// out = aT b, side = column sums of b
//
// a [k, m], b [k, n], out [m, n], side [n]: row-major; m and n multiples of 4. It is the backward pass
// of gemm_nn to its weights and bias: a the input, b the gradient of the output. Rows of a and b may
// lie further apart than their length (a_row, b_row, in vec4).
// Grid: x over blocks of 64 columns, y over blocks of 8 rows, z over the batch. An invocation makes a
// tile of 8 x 8 in registers; those of the first rows make the column sums.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: k ascending, one sum per element.
// How it got fast: as gemm_nn; four vec4 loads, along the rows of both, make 64 products. The column
// sums ride along instead of taking a launch of their own.

struct Params {
    m: u32,
    n: u32,
    k: u32,
    a_row: u32,
    b_row: u32,
    a_batch: u32,
    b_batch: u32,
    flags: u32,
}

const SUMS = 128u;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> side: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let rows = params.m / 4u;
    let columns = params.n / 4u;
    let row = id.y * 2u;
    let column = id.x * 2u;
    // What lies outside is computed as a repetition of the last row or column, and not stored.
    var a_at = id.z * params.a_batch;
    var b_at = id.z * params.b_batch;
    let top = min(row, rows - 1u);
    let bottom = min(row + 1u, rows - 1u);
    let left = min(column, columns - 1u);
    let right = min(column + 1u, columns - 1u);
    var sum: array<vec4<f32>, 16>;
    for (var i = 0u; i < 16u; i++) {
        sum[i] = vec4(0.0);
    }
    var total0 = vec4(0.0);
    var total1 = vec4(0.0);
    for (var k = 0u; k < params.k; k++) {
        let x0 = a[a_at + top];
        let x1 = a[a_at + bottom];
        let y0 = b[b_at + left];
        let y1 = b[b_at + right];
        for (var i = 0u; i < 4u; i++) {
            sum[2u * i] = fma(vec4(x0[i]), y0, sum[2u * i]);
            sum[2u * i + 1u] = fma(vec4(x0[i]), y1, sum[2u * i + 1u]);
            sum[2u * i + 8u] = fma(vec4(x1[i]), y0, sum[2u * i + 8u]);
            sum[2u * i + 9u] = fma(vec4(x1[i]), y1, sum[2u * i + 9u]);
        }
        total0 += y0;
        total1 += y1;
        a_at += params.a_row;
        b_at += params.b_row;
    }
    for (var i = 0u; i < 8u; i++) {
        if 8u * id.y + i < params.m {
            let at = (id.z * params.m + 8u * id.y + i) * columns;
            if column < columns {
                out[at + column] = sum[2u * i];
            }
            if column + 1u < columns {
                out[at + column + 1u] = sum[2u * i + 1u];
            }
        }
    }
    if id.y == 0u && (params.flags & SUMS) != 0u {
        let at = id.z * columns + column;
        if column < columns {
            side[at] = total0;
        }
        if column + 1u < columns {
            side[at + 1u] = total1;
        }
    }
}
