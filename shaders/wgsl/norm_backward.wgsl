// With n = (x - mean) / deviation and h = gradient * gamma, all along a row:
// to_x = (h - mean(h) - n mean(h n)) / deviation; along a column: to_gamma = sum(gradient n), to_beta =
// sum(gradient)
//
// x, gradient, to_x [rows, width], stats [rows, 2] (mean and 1 / deviation, from norm), gamma, to_gamma,
// to_beta [width]: row-major; width counted in Elem. Without CENTRED (RMS norm) mean(h) is left out,
// without SHIFTED to_beta is.
// Grid: workgroups counted row after row of the grid; the first params.row_groups make 256 / lanes rows
// of to_x each, the others 8 columns of to_gamma and to_beta each.
// Workgroup memory: 10 KiB, partial sums; rows need no barrier if a lane has a row to itself.
// Accumulation order: rows as in norm; columns: 32 invocations take every 32nd row, ascending, then
// their sums are added in order.
// How it got fast: (1) three launches; (2) one, whose workgroups have different roles: the columns'
// few and long ones run beside the rows' many.

//#include "elem"
//#include "total"

struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
    flags: u32,
    row_groups: u32,
}

const CENTRED = 1u;
const SHIFTED = 2u;
const ACROSS = 8u;
const DOWN = 32u;

@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> gamma: array<Elem>;
@group(0) @binding(3) var<storage, read> gradient: array<Elem>;
@group(0) @binding(4) var<storage, read_write> to_x: array<Elem>;
@group(0) @binding(5) var<storage, read_write> to_gamma: array<Elem>;
@group(0) @binding(6) var<storage, read_write> to_beta: array<Elem>;
@group(0) @binding(7) var<uniform> params: Params;

var<workgroup> partial: array<vec2<f32>, 256>;
var<workgroup> partial_gamma: array<Elem, 256>;
var<workgroup> partial_beta: array<Elem, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let place = group.y * groups.x + group.x;
    if place < params.row_groups {
        rows(place, local);
    } else {
        columns(place - params.row_groups, local);
    }
}

fn rows(place: u32, local: u32) {
    let lanes = params.lanes;
    let lane = local % lanes;
    let row = place * (256u / lanes) + local / lanes;
    // Rows too many are computed as a repetition of the last, and not stored.
    let source = min(row, params.rows - 1u);
    let start = source * params.width;
    let mean = stats[source].x;
    let scale = stats[source].y;
    var sum = Elem(0.0);
    var product = Elem(0.0);
    for (var i = lane; i < params.width; i += lanes) {
        let h = gradient[start + i] * gamma[i];
        sum += h;
        product += h * ((x[start + i] - mean) * scale);
    }
    let means = joined(local, vec2(total(sum), total(product))) / f32(params.width * WIDE);
    if row >= params.rows {
        return;
    }
    let shift = select(0.0, means.x, (params.flags & CENTRED) != 0u);
    for (var i = lane; i < params.width; i += lanes) {
        let n = (x[start + i] - mean) * scale;
        to_x[start + i] = (gradient[start + i] * gamma[i] - shift - n * means.y) * scale;
    }
}

fn columns(place: u32, local: u32) {
    let column = place * ACROSS + local % ACROSS;
    var sum = Elem(0.0);
    var product = Elem(0.0);
    if column < params.width {
        for (var row = local / ACROSS; row < params.rows; row += DOWN) {
            let at = row * params.width + column;
            let stat = stats[row];
            let g = gradient[at];
            sum += g;
            product += g * ((x[at] - stat.x) * stat.y);
        }
    }
    partial_gamma[local] = product;
    partial_beta[local] = sum;
    workgroupBarrier();
    if local < ACROSS && column < params.width {
        for (var i = 1u; i < DOWN; i++) {
            product += partial_gamma[local + i * ACROSS];
            sum += partial_beta[local + i * ACROSS];
        }
        to_gamma[column] = product;
        if (params.flags & SHIFTED) != 0u {
            to_beta[column] = sum;
        }
    }
}

// The sums of a row's lanes' values. All invocations come here together.
fn joined(local: u32, value: vec2<f32>) -> vec2<f32> {
    var sum = value;
    if params.lanes > 1u {
        partial[local] = value;
        workgroupBarrier();
        let first = local - local % params.lanes;
        sum = vec2(0.0);
        for (var i = 0u; i < params.lanes; i++) {
            sum += partial[first + i];
        }
    }
    return sum;
}
