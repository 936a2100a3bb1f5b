// out = sum over taps and channels of what the kernel sees times the weights, + bias: for groups that make few channels
//
// x [images, groups sources, depth, rows, columns]: row-major. weight: as the parameters say. bias [groups made]. out [images,
// groups made, ..], at the places that the parameters give.
// Grid: an invocation per four neighbouring positions of a channel, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: taps in order, channel by channel, one sum per number.
// How it got fast: (1) a weight that is read serves four positions. Products of matrices would make 64 channels at a time.

//#include "convolution_direct_params"

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let fours = (params.grid_x + 3u) / 4u;
    let number = (group.y * groups.x + group.x) * 64u + local;
    let line = number / fours;
    let plane = line / params.grid_y;
    let of_all = plane / params.grid_z;
    let channels = params.groups * params.made;
    let image = of_all / channels;
    if image >= params.images {
        return;
    }
    let channel = of_all % channels;
    let of_group = channel / params.made;
    let gx = number % fours * 4u;
    let gy = line % params.grid_y;
    let gz = plane % params.grid_z;
    // What lies outside the input is a large number.
    let from_z = gz * params.move_z + params.shift_z;
    let from_y = gy * params.move_y + params.shift_y;
    let from_x = (gx + vec4(0u, 1u, 2u, 3u)) * params.move_x + params.shift_x;
    var sum = vec4(0.0);
    for (var source = 0u; source < params.sources; source++) {
        let begin = (image * params.groups + of_group) * params.sources + source;
        let weights = of_group * params.from_group + channel % params.made * params.from_made + source * params.from_source;
        for (var jz = 0u; jz < params.taps_z; jz++) {
            let z = from_z + jz * params.step_z;
            for (var jy = 0u; jy < params.taps_y; jy++) {
                let y = from_y + jy * params.step_y;
                if z >= params.depth || y >= params.rows {
                    continue;
                }
                let row = ((begin * params.depth + z) * params.rows + y) * params.columns;
                let tap = weights + params.tap + jz * params.tap_z + jy * params.tap_y;
                for (var jx = 0u; jx < params.taps_x; jx++) {
                    let column = from_x + jx * params.step_x;
                    let at = row + min(column, vec4(params.columns - 1u));
                    let found = vec4(x[at.x], x[at.y], x[at.z], x[at.w]);
                    sum += select(vec4(0.0), found, column < vec4(params.columns)) * weight[tap + jx * params.tap_x];
                }
            }
        }
    }
    if params.biased != 0u {
        sum += bias[channel];
    }
    let to = params.to + image * params.to_image + channel * params.to_channel + gz * params.to_z + gy * params.to_y;
    for (var i = 0u; i < min(4u, params.grid_x - gx); i++) {
        out[to + (gx + i) * params.to_x] = select(select(sum.x, sum.y, i == 1u), select(sum.z, sum.w, i == 3u), i >= 2u);
    }
}
