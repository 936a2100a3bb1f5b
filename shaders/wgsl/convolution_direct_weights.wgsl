// weight = for each tap and pair of channels, the sum over positions of what the kernel sees times the gradient: for groups that
// make few channels
//
// x [images, groups sources, depth, rows, columns], gradient [images, groups made, grid], weight [groups made, sources, taps]:
// row-major.
// Grid: a workgroup per 64 / lanes weights, counted row after row of the grid. params.lanes, a power of two up to 64,
// invocations share a weight.
// Workgroup memory: 256 bytes, the lanes' partial sums; no barrier if a lane has a weight to itself.
// Accumulation order: each line of positions alone; each lane every lanes-th line, ascending; then the lanes ascending.
// How it got fast: it did not have to: a number is read once for each tap, from a cache.

//#include "convolution_direct_params"

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gradient: array<f32>;
@group(0) @binding(2) var<storage, read_write> weight: array<f32>;
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
    let taps = params.taps_z * params.taps_y * params.taps_x;
    let count = params.groups * params.made * params.sources * taps;
    let number = (group.y * groups.x + group.x) * (64u / lanes) + local / lanes;
    // Weights too many are computed as a repetition of the last, and not stored.
    let found = min(number, count - 1u);
    let tap = found % taps;
    let source = found / taps % params.sources;
    let channel = found / taps / params.sources;
    let jx = tap % params.taps_x;
    let jy = tap / params.taps_x % params.taps_y;
    let jz = tap / params.taps_x / params.taps_y;
    // What lies outside the input is a large number.
    let from_z = params.shift_z + jz * params.step_z;
    let from_y = params.shift_y + jy * params.step_y;
    let from_x = params.shift_x + jx * params.step_x;
    var total = 0.0;
    for (var line = lane; line < params.images * params.grid_z * params.grid_y; line += lanes) {
        let image = line / params.grid_y / params.grid_z;
        let gz = line / params.grid_y % params.grid_z;
        let gy = line % params.grid_y;
        let z = from_z + gz * params.move_z;
        let y = from_y + gy * params.move_y;
        if z >= params.depth || y >= params.rows {
            continue;
        }
        let read = (image * params.groups + channel / params.made) * params.sources + source;
        let row = ((read * params.depth + z) * params.rows + y) * params.columns;
        let made = image * params.groups * params.made + channel;
        let slopes = ((made * params.grid_z + gz) * params.grid_y + gy) * params.grid_x;
        var sum = 0.0;
        for (var gx = 0u; gx < params.grid_x; gx++) {
            let column = from_x + gx * params.move_x;
            let read = x[row + min(column, params.columns - 1u)];
            sum += select(0.0, read, column < params.columns) * gradient[slopes + gx];
        }
        total += sum;
    }
    if lanes > 1u {
        partial[local] = total;
        workgroupBarrier();
        let first = local - lane;
        total = 0.0;
        for (var i = 0u; i < lanes; i++) {
            total += partial[first + i];
        }
    }
    if lane == 0u && number < count {
        weight[number] = total;
    }
}
