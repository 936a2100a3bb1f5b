// out = f(x), f one of ReLU max(x, 0), GELU x (1 + erf(x / sqrt(2))) / 2, SiLU x / (1 + exp(-x)), GELU by tanh
// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
//
// x, out [count], counted in Elem.
// Grid: a workgroup per 64 elements, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: four numbers an invocation; it is as fast as memory. Better still, the epilogues of
// the matrix products have it.

//#include "elem"
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
    out[at] = activated(x[at]);
}
