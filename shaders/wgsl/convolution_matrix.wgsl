// matrix = the weights of a convolution as a product takes them
//
// weight: that of the kernel's tap t from a group's source channel s to its made channel m lies at group * from_group + m *
// from_made + s * from_source + t. matrix [groups, taps, 4 * ceil(sources / 4), ceil(made / 4)] of vec4 of made channels:
// row-major, with zeros where there is no channel.
// Grid: an invocation per vec4 of the matrix, in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: nothing is added.
// How it got fast: it did not have to: there are few weights for each product.

struct Params {
    groups: u32,
    taps: u32,
    sources: u32,
    made: u32,
    from_group: u32,
    from_source: u32,
    from_made: u32,
}

@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read_write> matrix: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let quads = (params.made + 3u) / 4u;
    let rows = (params.sources + 3u) / 4u * 4u;
    let at = (group.y * groups.x + group.x) * 64u + local;
    if at >= params.groups * params.taps * rows * quads {
        return;
    }
    let source = at / quads % rows;
    let tap = at / quads / rows % params.taps;
    let of_group = at / quads / rows / params.taps * params.from_group;
    let channel = at % quads * 4u;
    var found = vec4(0.0);
    if source < params.sources {
        let first = of_group + channel * params.from_made + source * params.from_source + tap;
        let behind = params.made - 1u - channel;
        let step = params.from_made;
        found = vec4(
            weight[first],
            weight[first + step * min(1u, behind)],
            weight[first + step * min(2u, behind)],
            weight[first + step * min(3u, behind)],
        );
        found = select(vec4(0.0), found, vec4(0u, 1u, 2u, 3u) <= vec4(behind));
    }
    matrix[at] = found;
}
