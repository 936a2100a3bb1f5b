// out = (x - mean) / deviation * gamma + beta, deviation = sqrt(mean((x - mean)^2) + epsilon)
//
// x [rows, width], gamma [width], beta [width], out [rows, width], stats [rows, 2]: row-major; width
// counted in Elem. stats takes mean and 1 / deviation of each row, for the backward pass. Without
// CENTRED the mean is taken to be 0, which makes it RMS norm; without SHIFTED there is no beta.
// Grid: a workgroup per 64 / lanes rows, counted row after row of the grid. params.lanes, a power of
// two up to 64, invocations share a row.
// Workgroup memory: 512 bytes, the lanes' partial sums; no barrier if a lane has a row to itself.
// Accumulation order: each lane every lanes-th element, ascending, each component of Elem alone; then
// the components, then the lanes ascending. The mean is subtracted before squaring.
// How it got fast: (1) a row per invocation; (2) vec4 loads; (3) lanes share a row on GPUs, so that
// neighbours read neighbouring memory.

//#include "elem"
//#include "total"

struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    epsilon: f32,
}

const CENTRED = 1u;
const SHIFTED = 2u;

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> gamma: array<Elem>;
@group(0) @binding(2) var<storage, read> beta: array<Elem>;
@group(0) @binding(3) var<storage, read_write> out: array<Elem>;
@group(0) @binding(4) var<storage, read_write> stats: array<vec2<f32>>;
@group(0) @binding(5) var<uniform> params: Params;

var<workgroup> partial: array<f32, 128>;

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
    let count = f32(params.width * WIDE);
    var mean = 0.0;
    if (params.flags & CENTRED) != 0u {
        var sum = Elem(0.0);
        for (var i = lane; i < params.width; i += lanes) {
            sum += x[start + i];
        }
        mean = joined(0u, local, total(sum)) / count;
    }
    var squares = Elem(0.0);
    for (var i = lane; i < params.width; i += lanes) {
        let d = x[start + i] - mean;
        squares += d * d;
    }
    let variance = joined(64u, local, total(squares)) / count;
    let scale = 1.0 / sqrt(variance + params.epsilon);
    if row >= params.rows {
        return;
    }
    if lane == 0u {
        stats[row] = vec2(mean, scale);
    }
    let shifted = (params.flags & SHIFTED) != 0u;
    for (var i = lane; i < params.width; i += lanes) {
        var y = (x[start + i] - mean) * scale * gamma[i];
        if shifted {
            y += beta[i];
        }
        out[start + i] = y;
    }
}

// The sum of a row's lanes' values. All invocations come here together.
fn joined(slot: u32, local: u32, value: f32) -> f32 {
    var sum = value;
    if params.lanes > 1u {
        partial[slot + local] = value;
        workgroupBarrier();
        let first = slot + local - local % params.lanes;
        sum = 0.0;
        for (var i = 0u; i < params.lanes; i++) {
            sum += partial[first + i];
        }
    }
    return sum;
}
