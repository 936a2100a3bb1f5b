// loss = mean over rows that count of log(sum(exp(logits))) - logits[target]
//
// logits [rows, width], targets [rows], norms [rows], parts [groups, 2], loss [1]: row-major; width
// counted in Elem. norms takes log(sum(exp(logits))) of each row, for the backward pass; parts takes sum
// and number of a workgroup's losses; where there is only one workgroup, loss takes the mean, else
// cross_entropy_mean makes it. With IGNORING, rows with the target params.ignore do not count; any other
// target that is no class makes the loss params.invalid.
// Grid: a workgroup per 64 / lanes rows, counted row after row of the grid. params.lanes, a power of
// two up to 64, invocations share a row.
// Workgroup memory: 1 KiB, the lanes' maxima and sums, then the losses.
// Accumulation order: each lane every lanes-th element, ascending, then the lanes, then the rows
// ascending. Sums are relative to the largest logit so far (Milakov and Gimelshein, 2018).
// How it got fast: (1) a pass for the maximum, one for the sum; (2) both in one; (3) the mean of small
// batches in the same launch. The gradient is made from logits and norms in the backward pass: reading
// them again costs less than storing a gradient that has still to be scaled.

//#include "elem"
//#include "peak"
//#include "total"
const STEPS = Elem(0.0, 1.0, 2.0, 3.0); //#scalar: const STEPS = Elem(0.0);

struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    groups: u32,
    ignore: i32,
    invalid: f32,
}

const IGNORING = 1u;
const LOWEST = -3.0e38;

@group(0) @binding(0) var<storage, read> logits: array<Elem>;
@group(0) @binding(1) var<storage, read> targets: array<i32>;
@group(0) @binding(2) var<storage, read_write> norms: array<f32>;
@group(0) @binding(3) var<storage, read_write> parts: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

var<workgroup> partial: array<vec2<f32>, 64>;
var<workgroup> losses: array<vec2<f32>, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let lanes = params.lanes;
    let lane = local % lanes;
    let place = group.y * groups.x + group.x;
    let row = place * (64u / lanes) + local / lanes;
    // Rows too many are computed as a repetition of the last, and not stored.
    let source = min(row, params.rows - 1u);
    let start = source * params.width;
    // The largest so far, and the sum of exponentials relative to it.
    var sum = vec2(LOWEST, 0.0);
    for (var i = lane; i < params.width; i += lanes) {
        let v = logits[start + i];
        let top = max(sum.x, peak(v));
        sum = vec2(top, sum.y * exp(sum.x - top) + total(exp(v - top)));
    }
    if lanes > 1u {
        partial[local] = sum;
        workgroupBarrier();
        let first = local - lane;
        sum = partial[first];
        for (var i = 1u; i < lanes; i++) {
            let other = partial[first + i];
            let top = max(sum.x, other.x);
            sum = vec2(top, sum.y * exp(sum.x - top) + other.y * exp(other.x - top));
        }
    }
    let norm = sum.x + log(sum.y);
    let wanted = targets[source];
    let counts = (params.flags & IGNORING) == 0u || wanted != params.ignore;
    // Sum and number of losses.
    var part = vec2(0.0);
    if row < params.rows && lane == 0u {
        norms[row] = norm;
        if counts {
            part = vec2(params.invalid, 1.0);
            if wanted >= 0 && u32(wanted) < params.width * WIDE {
                let v = logits[start + u32(wanted) / WIDE];
                let hot = STEPS == Elem(f32(u32(wanted) % WIDE));
                part.x = norm - total(select(Elem(0.0), v, hot));
            }
        }
    }
    losses[local] = part;
    workgroupBarrier();
    if local == 0u && place < params.groups {
        for (var i = lanes; i < 64u; i += lanes) {
            part += losses[i];
        }
        parts[place] = part;
        if params.groups == 1u {
            loss[0] = part.x / max(part.y, 1.0);
        }
    }
}
