// out = aT b, side = column sums of b
//
// a [k, m], b [k, n], out [m, n], side [n]: row-major; m and n multiples of 4. It is the backward pass
// of gemm_nn to its weights and bias: a the input, b the gradient of the output. Rows of a and b may
// lie further apart than their length (a_row, b_row, in vec4).
// Grid: x over blocks of 64 columns, y over blocks of 8 rows, z over the batch. An invocation makes a
// tile of 8 x 8 in registers; those of the first rows make the column sums.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: four products, then their sum to the total, k ascending.
// How it got fast: as gemm_nn; both operands are loaded as vec4 along their rows, four rows at a time,
// so that the sums are touched once for four products: 1.6 times as fast as row after row. The column
// sums ride along instead of taking a launch of their own.

//#include "product_vectors"

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
    let a_at = id.z * params.a_batch;
    let b_at = id.z * params.b_batch;
    let top = min(row, rows - 1u);
    let bottom = min(row + 1u, rows - 1u);
    let left = min(column, columns - 1u);
    let right = min(column + 1u, columns - 1u);
    // Each holds four rows of four columns: row i is sum[i].
    var sum00 = mat4x4<f32>();
    var sum01 = mat4x4<f32>();
    var sum10 = mat4x4<f32>();
    var sum11 = mat4x4<f32>();
    var total0 = vec4(0.0);
    var total1 = vec4(0.0);
    let last = params.k - 1u;
    for (var k = 0u; k < params.k; k += 4u) {
        // Beyond the last row it is the last again, times 0.
        let rest = vec4<u32>(k, k + 1u, k + 2u, k + 3u);
        let x_at = a_at + params.a_row * min(rest, vec4(last));
        let y_at = b_at + params.b_row * min(rest, vec4(last));
        let there = select(vec4(0.0), vec4(1.0), rest <= vec4(last));
        let x0 = transpose(mat4x4<f32>(a[x_at.x + top], a[x_at.y + top], a[x_at.z + top], a[x_at.w + top]));
        let x1 = transpose(mat4x4<f32>(
            a[x_at.x + bottom],
            a[x_at.y + bottom],
            a[x_at.z + bottom],
            a[x_at.w + bottom],
        ));
        let y0 = mat4x4<f32>(
            b[y_at.x + left] * there.x,
            b[y_at.y + left] * there.y,
            b[y_at.z + left] * there.z,
            b[y_at.w + left] * there.w,
        );
        sum00 += y0 * x0;
        sum10 += y0 * x1;
        total0 += y0[0] + y0[1] + y0[2] + y0[3];
        let y1 = mat4x4<f32>(
            b[y_at.x + right] * there.x,
            b[y_at.y + right] * there.y,
            b[y_at.z + right] * there.z,
            b[y_at.w + right] * there.w,
        );
        sum01 += y1 * x0;
        sum11 += y1 * x1;
        total1 += y1[0] + y1[1] + y1[2] + y1[3];
    }
    var tile = array<vec4<f32>, 16>(
        sum00[0], sum01[0], sum00[1], sum01[1], sum00[2], sum01[2], sum00[3], sum01[3],
        sum10[0], sum11[0], sum10[1], sum11[1], sum10[2], sum11[2], sum10[3], sum11[3],
    );
    // A loop that compilers cannot unroll: its body would be there sixteen times, and take them long.
    let pieces = min(16u, 16u * params.m);
    for (var i = 0u; i < pieces; i++) {
        let row_i = 8u * id.y + i / 2u;
        let column_i = column + i % 2u;
        if row_i < params.m && column_i < columns {
            out[(id.z * params.m + row_i) * columns + column_i] = tile[i];
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
