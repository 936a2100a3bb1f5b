// to_logits = (exp(logits - norm) - [column = target]) * upstream / count
//
// logits, to_logits [rows, width], targets, norms [rows], sums [1, 2] (its second number is the count),
// upstream [1]: row-major; width counted in Elem; norms and sums from cross_entropy. With IGNORING, rows
// with the target params.ignore get 0; rows with any other target that is no class get params.invalid.
// Grid: a workgroup per 64 / lanes rows, counted row after row of the grid. params.lanes, a power of
// two up to 64, invocations share a row.
// Workgroup memory: none.
// Accumulation order: no sums.
// How it got fast: the scale by the gradient of the loss, which lies on the device, rides along.

//#include "elem"
const STEPS = Elem(0.0, 1.0, 2.0, 3.0); //#scalar: const STEPS = Elem(0.0);

struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    ignore: i32,
    invalid: f32,
}

const IGNORING = 1u;

@group(0) @binding(0) var<storage, read> logits: array<Elem>;
@group(0) @binding(1) var<storage, read> targets: array<i32>;
@group(0) @binding(2) var<storage, read> norms: array<f32>;
@group(0) @binding(3) var<storage, read> sums: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> upstream: array<f32>;
@group(0) @binding(5) var<storage, read_write> to_logits: array<Elem>;
@group(0) @binding(6) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let lanes = params.lanes;
    let row = (group.y * groups.x + group.x) * (64u / lanes) + local / lanes;
    if row >= params.rows {
        return;
    }
    let start = row * params.width;
    let wanted = targets[row];
    let norm = norms[row];
    let counts = (params.flags & IGNORING) == 0u || wanted != params.ignore;
    let known = wanted >= 0 && u32(wanted) < params.width * WIDE;
    let scale = select(params.invalid, upstream[0] / max(sums[0].y, 1.0), known);
    let place = select(params.width, u32(wanted) / WIDE, known);
    let hot = STEPS == Elem(f32(u32(wanted) % WIDE));
    for (var i = local % lanes; i < params.width; i += lanes) {
        var share = exp(logits[start + i] - norm);
        if i == place {
            share -= select(Elem(0.0), Elem(1.0), hot);
        }
        to_logits[start + i] = select(Elem(0.0), share * scale, counts);
    }
}
