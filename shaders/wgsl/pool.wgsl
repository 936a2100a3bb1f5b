// out = the largest number of each window, or the mean of its numbers
//
// x [planes, rows, columns], out, places [planes, down, across]: row-major. places takes where in its plane the largest number
// is, for the backward pass: the first of several.
// Grid: an invocation per window, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: a window's numbers, row by row.
// How it got fast: it reads each number once for each window, from a cache.

//#include "pool_params"

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read_write> places: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = (group.y * groups.x + group.x) * 64u + local;
    let windows = params.down * params.across;
    if number >= params.planes * windows {
        return;
    }
    let first_y = number / params.across % params.down * params.stride_y;
    let first_x = number % params.across * params.stride_x;
    let start = number / windows * params.rows * params.columns;
    var top = -3.40282e38;
    var place = 0u;
    var found = false;
    var sum = 0.0;
    for (var j = 0u; j < params.kernel_y; j++) {
        // Outside of the plane it is a large number.
        let y = first_y + j * params.dilation_y - params.before_y;
        if y >= params.rows {
            continue;
        }
        for (var i = 0u; i < params.kernel_x; i++) {
            let column = first_x + i * params.dilation_x - params.before_x;
            if column < params.columns {
                let at = y * params.columns + column;
                let number = x[start + at];
                sum += number;
                if !found || number > top {
                    top = number;
                    place = at;
                }
                found = true;
            }
        }
    }
    if params.kind == 0u {
        out[number] = top;
        places[number] = place;
    } else {
        let high = counted(first_y, params.kernel_y, params.before_y, params.rows);
        let wide = counted(first_x, params.kernel_x, params.before_x, params.columns);
        out[number] = sum / f32(high * wide);
    }
}
