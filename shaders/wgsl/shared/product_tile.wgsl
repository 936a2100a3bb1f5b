// A tile of 64 x 64 sums, 8 x 8 in the registers of each of 64 invocations, from slices in workgroup memory.

const TILE = 64u;
const DEPTH = 8u;
// Distance between depths, in vec4. With 16, those that four invocations store at a time would share banks.
const PITCH = 17u;
// Where the columns of b begin in a slice, and the second slice.
const COLUMNS = 136u;
const SECOND = 272u;

// Number kk * PITCH + q holds rows 4 q to 4 q + 3 of a at depth kk, and behind COLUMNS columns of b.
var<workgroup> slices: array<vec4<f32>, 544>;

// What an invocation makes: 4 x 4 in each corner of the tile's four quarters.
struct Sums {
    upper_left: mat4x4<f32>,
    upper_right: mat4x4<f32>,
    lower_left: mat4x4<f32>,
    lower_right: mat4x4<f32>,
    // Of the columns of b.
    of_left: vec4<f32>,
    of_right: vec4<f32>,
}

// Two depths. Between branches AMD's compiler has so many loads on their way that it spills registers.
fn add_two(sums: ptr<function, Sums>, x: u32, y: u32, summed: bool) {
    add(sums, x, y);
    add(sums, x + PITCH, y + PITCH);
    if summed {
        (*sums).of_left += slices[y] + slices[y + PITCH];
        (*sums).of_right += slices[y + 8u] + slices[y + PITCH + 8u];
    }
}

// The products of one depth, whose rows and columns are at these places.
fn add(sums: ptr<function, Sums>, x: u32, y: u32) {
    let x0 = slices[x];
    let x1 = slices[x + 8u];
    let y0 = slices[y];
    let y1 = slices[y + 8u];
    (*sums).upper_left += mat4x4<f32>(x0.x * y0, x0.y * y0, x0.z * y0, x0.w * y0);
    (*sums).upper_right += mat4x4<f32>(x0.x * y1, x0.y * y1, x0.z * y1, x0.w * y1);
    (*sums).lower_left += mat4x4<f32>(x1.x * y0, x1.y * y0, x1.z * y0, x1.w * y0);
    (*sums).lower_right += mat4x4<f32>(x1.x * y1, x1.y * y1, x1.z * y1, x1.w * y1);
}

fn put(x: mat4x4<f32>, at: u32, pitch: u32) {
    slices[at] = x[0];
    slices[at + pitch] = x[1];
    slices[at + 2u * pitch] = x[2];
    slices[at + 3u * pitch] = x[3];
}

fn half_of(upper: mat4x4<f32>, lower: mat4x4<f32>, half: u32) -> mat4x4<f32> {
    if half == 0u {
        return upper;
    }
    return lower;
}

fn pick(x: vec4<f32>, i: u32) -> f32 {
    return select(select(x.x, x.y, i == 1u), select(x.z, x.w, i == 3u), i >= 2u);
}
