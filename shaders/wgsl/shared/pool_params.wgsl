struct Params {
    // Images times channels.
    planes: u32,
    rows: u32,
    columns: u32,
    // Windows along both axes.
    down: u32,
    across: u32,
    kernel_y: u32,
    kernel_x: u32,
    stride_y: u32,
    stride_x: u32,
    before_y: u32,
    before_x: u32,
    dilation_y: u32,
    dilation_x: u32,
    // 0 for maxima, 1 for means of what is there, 2 for means with the border.
    kind: u32,
}

// What a mean divides by: the numbers of a window along an axis, without those that are not there or lie behind the border.
fn counted(first: u32, kernel: u32, before: u32, length: u32) -> u32 {
    let end = first + kernel;
    if params.kind == 2u {
        return min(end, length + 2u * before) - first;
    }
    return min(end, length + before) - max(first, before);
}
