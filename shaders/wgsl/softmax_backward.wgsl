// to_x = y * (gradient - sum(gradient * y)), row by row, y being the softmax
//
// y, gradient, to_x [rows, width]: row-major; width counted in Elem.
// Grid: a workgroup per 64 / lanes rows, counted row after row of the grid. params.lanes, a power of
// two up to 64, invocations share a row.
// Workgroup memory: 256 bytes, the lanes' partial sums; no barrier if a lane has a row to itself.
// Accumulation order: each lane every lanes-th element, ascending, then the lanes ascending.
// How it got fast: one launch instead of four.

//#include "elem"
//#include "total"

struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
}

@group(0) @binding(0) var<storage, read> y: array<Elem>;
@group(0) @binding(1) var<storage, read> gradient: array<Elem>;
@group(0) @binding(2) var<storage, read_write> to_x: array<Elem>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> partial: array<f32, 64>;

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
    var products = Elem(0.0);
    for (var i = lane; i < params.width; i += lanes) {
        products += gradient[start + i] * y[start + i];
    }
    var sum = total(products);
    if lanes > 1u {
        partial[local] = sum;
        workgroupBarrier();
        let first = local - lane;
        sum = 0.0;
        for (var i = 0u; i < lanes; i++) {
            sum += partial[first + i];
        }
    }
    if row >= params.rows {
        return;
    }
    for (var i = lane; i < params.width; i += lanes) {
        to_x[start + i] = y[start + i] * (gradient[start + i] - sum);
    }
}
