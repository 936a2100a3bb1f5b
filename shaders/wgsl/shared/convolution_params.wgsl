struct Params {
    // Positions that the kernel takes, of all images, and along each axis of one.
    positions: u32,
    rows: u32,
    columns: u32,
    depth: u32,
    // Channels that a group makes, and vec4 of channels that it reads at a place.
    made: u32,
    quads: u32,
    // In vec4 of the copy: where the first tap at position 0 reads, how far from there it is to the next image, to the next
    // position along each axis, and from tap to tap.
    start: u32,
    image: u32,
    move_z: u32,
    move_y: u32,
    move_x: u32,
    step_z: u32,
    step_y: u32,
    step_x: u32,
    // Taps along each axis, the place of the first one among those of the matrix, which are so many, and from tap to tap.
    taps_z: u32,
    taps_y: u32,
    taps_x: u32,
    all_taps: u32,
    tap: u32,
    tap_z: u32,
    tap_y: u32,
    tap_x: u32,
    // Where the number of position 0 goes, and how far from there it is to the next image, channel and position.
    to: u32,
    to_image: u32,
    to_channel: u32,
    to_z: u32,
    to_y: u32,
    to_x: u32,
    biased: u32,
    // Positions in a piece of the gradient for the weights.
    piece: u32,
}

// The image of a position, and its place there.
fn place_of(position: u32) -> vec4<u32> {
    let line = position / params.columns;
    let plane = line / params.rows;
    return vec4(plane / params.depth, plane % params.depth, line % params.rows, position % params.columns);
}

// Where the first tap reads.
fn source_of(place: vec4<u32>) -> u32 {
    return params.start + place.x * params.image + place.y * params.move_z + place.z * params.move_y + place.w * params.move_x;
}

// Where the first channel's number goes.
fn target_of(place: vec4<u32>) -> u32 {
    return params.to + place.x * params.to_image + place.y * params.to_z + place.z * params.to_y + place.w * params.to_x;
}
