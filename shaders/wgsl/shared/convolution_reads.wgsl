// How far from a position four channels at a tap are.
fn reads(row: u32) -> u32 {
    let tap = row / params.quads;
    let line = tap / params.taps_x;
    let from_x = tap % params.taps_x * params.step_x;
    let from_y = line % params.taps_y * params.step_y;
    return line / params.taps_y * params.step_z + from_y + from_x + row % params.quads;
}
