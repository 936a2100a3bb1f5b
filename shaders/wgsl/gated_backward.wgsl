// to_gate = gradient * x * f'(gate), to_x = gradient * f(gate), f as in activation
//
// gate, x, gradient, to_gate, to_x [count], counted in Elem.
// Grid: a workgroup per 64 elements, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: four numbers an invocation; it is as fast as memory.

//#include "elem"
//#include "activation_kinds"

@group(0) @binding(0) var<storage, read> gate: array<Elem>;
@group(0) @binding(1) var<storage, read> x: array<Elem>;
@group(0) @binding(2) var<storage, read> gradient: array<Elem>;
@group(0) @binding(3) var<storage, read_write> to_gate: array<Elem>;
@group(0) @binding(4) var<storage, read_write> to_x: array<Elem>;
@group(0) @binding(5) var<uniform> params: Params;

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
    let v = gate[at];
    to_gate[at] = gradient[at] * x[at] * slope_of(v);
    to_x[at] = gradient[at] * activated(v);
}
