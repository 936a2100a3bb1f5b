// parts = sums over a part of the images, for each channel
//
// x and gradient [images, channels, each], known [2, channels], from batch_norm_total, parts [2, channels, parts]: row-major.
// Grid: a workgroup per part of a channel, counted row after row of the grid.
// Workgroup memory: 512 bytes, the lanes' partial sums.
// Accumulation order: params.across lanes side by side in an image, the others in further images. Each adds up blocks of 32
// numbers, then the blocks; then pairs of lanes, the distance halving from 32. So no sum is long, and bits repeat.
// How it got fast: (1) several parts for each channel, so that a GPU has enough to do.

struct Params {
    images: u32,
    channels: u32,
    each: u32,
    parts: u32,
    across: u32,
    kind: u32,
}

// The sum of x.
const PLAIN = 0u;
// The sum of x less its first number, so that a mean far from 0 costs no digits.
const SHIFTED = 1u;
// The mean, from these in known, and the sum of the squares around it.
const SQUARES = 2u;
// The sums of the gradient, and of it times x less its mean, which is in known.
const SLOPES = 3u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gradient: array<f32>;
@group(0) @binding(2) var<storage, read> known: array<f32>;
@group(0) @binding(3) var<storage, read_write> parts: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

var<workgroup> partial: array<vec2<f32>, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.y * groups.x + group.x;
    // Parts too many are computed as a repetition of the last, and not stored.
    let of_all = min(number, params.channels * params.parts - 1u);
    let channel = of_all / params.parts;
    let part = of_all % params.parts;
    let first = x[channel * params.each];
    var mean = 0.0;
    if params.kind == SHIFTED {
        mean = first;
    } else if params.kind == SQUARES {
        var sum = 0.0;
        for (var i = 0u; i < params.parts; i++) {
            sum += known[channel * params.parts + i];
        }
        mean = first + sum / f32(params.images * params.each);
    } else if params.kind == SLOPES {
        mean = known[channel];
    }
    let down = 64u / params.across;
    let end = (part + 1u) * params.images / params.parts;
    var total = vec2(0.0);
    for (var image = part * params.images / params.parts + local / params.across; image < end; image += down) {
        let start = (image * params.channels + channel) * params.each;
        var i = local % params.across;
        while i < params.each {
            let stop = min(params.each, i + 32u * params.across);
            var block = vec2(0.0);
            for (; i < stop; i += params.across) {
                let d = x[start + i] - mean;
                if params.kind == SLOPES {
                    let g = gradient[start + i];
                    block += vec2(g, g * d);
                } else {
                    block += vec2(d, d * d);
                }
            }
            total += block;
        }
    }
    partial[local] = total;
    workgroupBarrier();
    for (var distance = 32u; distance > 0u; distance /= 2u) {
        if local < distance {
            partial[local] += partial[local + distance];
        }
        workgroupBarrier();
    }
    if local == 0u && number == of_all {
        let sums = partial[0];
        parts[of_all] = select(sums.x, mean, params.kind == SQUARES);
        parts[params.channels * params.parts + of_all] = sums.y;
    }
}
