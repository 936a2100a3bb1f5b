// to_x = what each window that holds a number passes on to it
//
// gradient, places [planes, down, across], from pool, to_x [planes, rows, columns]: row-major.
// Grid: an invocation per number of to_x, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: windows, those that hold the number in their first rows first. Each number looks for its windows, so
// nothing is added by two invocations.
// How it got fast: it did not have to: few windows hold a number.

//#include "pool_params"

@group(0) @binding(0) var<storage, read> gradient: array<f32>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> to_x: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = (group.y * groups.x + group.x) * 64u + local;
    let size = params.rows * params.columns;
    if number >= params.planes * size {
        return;
    }
    let at = number % size;
    let y = at / params.columns + params.before_y;
    let column = at % params.columns + params.before_x;
    let start = number / size * params.down * params.across;
    var sum = 0.0;
    for (var j = 0u; j < params.kernel_y; j++) {
        // Where a window begins that has the number in this row; before the first window it is a large number.
        let first_y = y - j * params.dilation_y;
        let down = first_y / params.stride_y;
        if first_y > y || first_y % params.stride_y != 0u || down >= params.down {
            continue;
        }
        for (var i = 0u; i < params.kernel_x; i++) {
            let first_x = column - i * params.dilation_x;
            let across = first_x / params.stride_x;
            if first_x > column || first_x % params.stride_x != 0u || across >= params.across {
                continue;
            }
            let window = start + down * params.across + across;
            if params.kind == 0u {
                sum += select(0.0, gradient[window], places[window] == at);
            } else {
                let high = counted(first_y, params.kernel_y, params.before_y, params.rows);
                let wide = counted(first_x, params.kernel_x, params.before_x, params.columns);
                sum += gradient[window] / f32(high * wide);
            }
        }
    }
    to_x[number] = sum;
}
