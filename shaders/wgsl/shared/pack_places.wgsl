// Where each tensor goes.

struct Place {
    first_group: u32,
    length: u32,
    // In vec4.
    offset: u32,
    padded: u32,
}

struct Params {
    places: array<Place, 7>,
    scale: f32,
    accumulate: u32,
    groups_per_row: u32,
}
