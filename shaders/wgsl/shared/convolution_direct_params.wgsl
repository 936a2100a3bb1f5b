struct Params {
    images: u32,
    groups: u32,
    // Channels that a group reads and makes.
    sources: u32,
    made: u32,
    // Lengths of what is read.
    depth: u32,
    rows: u32,
    columns: u32,
    // Positions along each axis.
    grid_z: u32,
    grid_y: u32,
    grid_x: u32,
    // A position reads for a tap at position * move + shift + tap * step, if that is within the lengths.
    move_z: u32,
    move_y: u32,
    move_x: u32,
    shift_z: u32,
    shift_y: u32,
    shift_x: u32,
    step_z: u32,
    step_y: u32,
    step_x: u32,
    taps_z: u32,
    taps_y: u32,
    taps_x: u32,
    // Where the weight of the first tap lies, and how far it is to the next tap, group, made and source channel.
    tap: u32,
    tap_z: u32,
    tap_y: u32,
    tap_x: u32,
    from_group: u32,
    from_made: u32,
    from_source: u32,
    // Where the number of position 0 goes, and how far from there it is to the next image, channel and position.
    to: u32,
    to_image: u32,
    to_channel: u32,
    to_z: u32,
    to_y: u32,
    to_x: u32,
    biased: u32,
    // Invocations that share a sum of the gradient for the weights.
    lanes: u32,
}
