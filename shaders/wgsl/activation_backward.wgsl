// to_x = gradient * f'(x), f one of ReLU, GELU, SiLU as in activation; the ReLU's slope at 0 is 0
//
// x, gradient, to_x [count], counted in Elem.
// Grid: a workgroup per 64 elements, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: as activation.

//#include "elem"
//#include "erf"
//#include "activation_kinds"

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> gradient: array<Elem>;
@group(0) @binding(2) var<storage, read_write> to_x: array<Elem>;
@group(0) @binding(3) var<uniform> params: Params;

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
    var slope = select(Elem(0.0), Elem(1.0), v > Elem(0.0));
    if params.kind == GELU {
        slope = 0.5 * (1.0 + erf(v * 0.70710678)) + v * 0.39894228 * exp(-0.5 * v * v);
    } else if params.kind != RELU {
        let s = 1.0 / (1.0 + exp(-v));
        slope = s * (1.0 + v * (1.0 - s));
    }
    to_x[at] = gradient[at] * slope;
}
