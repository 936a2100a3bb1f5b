// out = f(sum of parts + bias) * g'(extra) + extra: adds up what gemm_tiled or gemm_matrix has made of each piece of k
//
// parts [k, m, n] with k the number of pieces, bias [n], extra [m, n], sums [k, n], out [m, n], row-major; terms and side
// as in gemm_tiled, where side takes the totals of sums (SUMS) or of parts + bias (SIDE). n is a multiple of 4, but for
// the scalar text.
// Grid: an invocation per element, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: pieces ascending, so bits repeat.
// How it got fast: (1) four loads on their way at a time.

alias Elem = vec4<f32>; //#scalar: alias Elem = f32;
const WIDE = 4u; //#scalar: const WIDE = 1u;

//#include "product_strided"

struct Params {
    //#include "product_params"
}

@group(0) @binding(0) var<storage, read> parts: array<Elem>;
@group(0) @binding(1) var<storage, read> bias: array<Elem>;
@group(0) @binding(2) var<storage, read> extra: array<Elem>;
@group(0) @binding(3) var<storage, read> sums: array<Elem>;
@group(0) @binding(4) var<storage, read_write> out: array<Elem>;
@group(0) @binding(5) var<storage, read_write> side: array<Elem>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let columns = params.n / WIDE;
    let count = params.m * columns;
    let at = (group.y * groups.x + group.x) * 64u + local;
    if at >= count {
        return;
    }
    var sum = Elem(0.0);
    var piece = 0u;
    for (; piece + 4u <= params.k; piece += 4u) {
        let first = piece * count + at;
        let x0 = parts[first];
        let x1 = parts[first + count];
        let x2 = parts[first + 2u * count];
        let x3 = parts[first + 3u * count];
        sum = sum + x0 + x1 + x2 + x3;
    }
    for (; piece < params.k; piece++) {
        sum += parts[piece * count + at];
    }
    finish(sum, at / columns, at % columns, 0u);
    if (params.flags & SUMS) != 0u && at < columns {
        var total = Elem(0.0);
        for (var piece = 0u; piece < params.k; piece++) {
            total += sums[piece * columns + at];
        }
        side[at] = total;
    }
}
