// copy = x with its channels last, in vec4 of a group's channels, and with zeros around each image
//
// x [images, groups channels, depth, rows, columns], copy [images, planes, lines, places, groups, quads] of vec4: row-major.
// Grid: an invocation per vec4 of the copy, along a line of places; in rows of workgroups.
// Workgroup memory: none.
// Accumulation order: nothing is added.
// How it got fast: (1) neighbours read neighbouring numbers, four times.

struct Params {
    images: u32,
    groups: u32,
    channels: u32,
    depth: u32,
    rows: u32,
    columns: u32,
    planes: u32,
    lines: u32,
    places: u32,
    // Zeros before the first plane, row and column.
    before_z: u32,
    before_y: u32,
    before_x: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> copy: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let quads = (params.channels + 3u) / 4u;
    let all_quads = params.groups * quads;
    let number = (group.y * groups.x + group.x) * 64u + local;
    let places = params.planes * params.lines * params.places;
    if number >= params.images * all_quads * places {
        return;
    }
    let place = number % places;
    let of_all = number / places;
    let quad = of_all % all_quads;
    let image = of_all / all_quads;
    // Outside of the image they are large numbers.
    let column = place % params.places - params.before_x;
    let row = place / params.places % params.lines - params.before_y;
    let plane = place / params.places / params.lines - params.before_z;
    var found = vec4(0.0);
    if column < params.columns && row < params.rows && plane < params.depth {
        let size = params.depth * params.rows * params.columns;
        let channel = quad % quads * 4u;
        let first = (image * params.groups + quad / quads) * params.channels + channel;
        let at = first * size + (plane * params.rows + row) * params.columns + column;
        let behind = params.channels - 1u - channel;
        found = vec4(x[at], x[at + size * min(1u, behind)], x[at + size * min(2u, behind)], x[at + size * min(3u, behind)]);
        found = select(vec4(0.0), found, vec4(0u, 1u, 2u, 3u) <= vec4(behind));
    }
    copy[(image * places + place) * all_quads + quad] = found;
}
