// out = f(gate) * x, f as in activation: with SiLU it is SwiGLU (Shazeer, 2020, "GLU variants improve transformer")
//
// gate, x, out [count], counted in Elem.
// Grid: a workgroup per 64 elements, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: four numbers an invocation; it is as fast as memory.

//#include "elem"
//#include "activation_kinds"

@group(0) @binding(0) var<storage, read> gate: array<Elem>;
@group(0) @binding(1) var<storage, read> x: array<Elem>;
@group(0) @binding(2) var<storage, read_write> out: array<Elem>;
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
    out[at] = activated(gate[at]) * x[at];
}
