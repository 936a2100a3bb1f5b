    // What the parameters of all optimizers begin with.
    fours: u32,
    groups_per_row: u32,
    checked: u32,
    clip: f32,
    scale: f32,
