// out = f(a b + bias) * g'(extra) + extra, with f and g one of identity, ReLU, GELU
//
// a [m, k] and b [k, n] with any strides (so a transpose costs nothing), bias [n], extra [m, n] and
// out [m, n] row-major. Each term is there if its flag is set; extra is either what the activation g
// was applied to (SLOPE flags) or a summand (EXTRA). side takes a b + bias [m, n] (SIDE) or the
// column sums of b [n] (SUMS).
// Grid: x over blocks of 32 columns, y over blocks of 32 rows, z over the batch. An invocation makes a
// tile of 4 x 4 in registers.
// Workgroup memory: none, and so no barriers: they are dear where threads are emulated by a CPU.
// Accumulation order: k ascending, one sum per element.
// How it got fast: it did not have to: it takes the shapes that the other products do not.

alias Elem = f32;
const WIDE = 1u;

//#include "product_strided"

struct Params {
    //#include "product_params"
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> extra: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> side: array<f32>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // What lies outside is computed as a repetition of the last row or column, and not stored.
    let rows = min(vec4(4u * id.y) + vec4(0u, 1u, 2u, 3u), vec4(params.m - 1u));
    let columns = min(vec4(4u * id.x) + vec4(0u, 1u, 2u, 3u), vec4(params.n - 1u));
    let a_at = id.z * params.a_batch + rows * params.a_row;
    let b_at = id.z * params.b_batch + columns * params.b_column;
    // Row i is sum[i].
    var sum = mat4x4<f32>();
    var total = vec4(0.0);
    for (var k = 0u; k < params.k; k++) {
        let x = a_at + k * params.a_column;
        let y = b_at + k * params.b_row;
        let row = vec4(b[y.x], b[y.y], b[y.z], b[y.w]);
        sum[0] = fma(vec4(a[x.x]), row, sum[0]);
        sum[1] = fma(vec4(a[x.y]), row, sum[1]);
        sum[2] = fma(vec4(a[x.z]), row, sum[2]);
        sum[3] = fma(vec4(a[x.w]), row, sum[3]);
        total += row;
    }
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            finish(sum[i][j], 4u * id.y + i, 4u * id.x + j, id.z);
        }
    }
    if id.y == 0u && (params.flags & SUMS) != 0u {
        for (var j = 0u; j < 4u; j++) {
            if 4u * id.x + j < params.n {
                side[id.z * params.n + 4u * id.x + j] = total[j];
            }
        }
    }
}
