// out = exp(x) / sum(exp(x)), row by row
//
// x, out [rows, width]: row-major; width counted in Elem.
// Grid: a workgroup per 64 / lanes rows, counted row after row of the grid. params.lanes, a power of
// two up to 64, invocations share a row.
// Workgroup memory: 512 bytes, the lanes' maxima and sums; no barrier if a lane has a row to itself.
// Accumulation order: each lane every lanes-th element, ascending, then the lanes. Sums are relative to
// the largest number so far (Milakov and Gimelshein, 2018).
// How it got fast: (1) maximum, sum, division: three passes; (2) maximum and sum in one.

//#include "elem"
//#include "peak"
//#include "total"

struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
}

const LOWEST = -3.0e38;

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> out: array<Elem>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> partial: array<vec2<f32>, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let lanes = params.lanes;
    let lane = local % lanes;
    let row = (group.y * groups.x + group.x) * (64u / lanes) + local / lanes;
    // Rows too many are computed as a repetition of the last, and not stored.
    let start = min(row, params.rows - 1u) * params.width;
    // The largest so far, and the sum of exponentials relative to it.
    var sum = vec2(LOWEST, 0.0);
    for (var i = lane; i < params.width; i += lanes) {
        let v = x[start + i];
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
    if row >= params.rows {
        return;
    }
    let scale = 1.0 / sum.y;
    for (var i = lane; i < params.width; i += lanes) {
        out[start + i] = exp(x[start + i] - sum.x) * scale;
    }
}
