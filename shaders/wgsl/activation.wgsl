// out = f(x), f one of ReLU max(x, 0), GELU x (1 + erf(x / sqrt(2))) / 2, SiLU x / (1 + exp(-x))
//
// x, out [count], counted in Elem.
// Grid: a workgroup per 64 elements, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: four numbers an invocation; it is as fast as memory. Better still, the epilogues of
// the matrix products have it.

//#include "elem"
//#include "erf"
//#include "activation_kinds"

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> out: array<Elem>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = (group.y * groups.x + group.x) * 64u + local;
    if at >= params.count {
        return;
    }
    let v = x[at];
    if params.kind == RELU {
        out[at] = max(v, Elem(0.0));
    } else if params.kind == GELU {
        out[at] = 0.5 * v * (1.0 + erf(v * 0.70710678));
    } else {
        out[at] = v / (1.0 + exp(-v));
    }
}
