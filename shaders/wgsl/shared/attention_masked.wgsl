// What a mask adds to scores, and which weights are dropped. Blocks of four queries, a column each, and four keys. A
// kernel says by MASKED whether there may be either.

//#include "philox"

// `rows` and `key` are those of the mask that there are; what lies behind the last key is that key's.
fn bias_of(batch: u32, head: u32, rows: vec4<u32>, key: u32) -> mat4x4<f32> {
    if (params.flags & BIASED) == 0u {
        return mat4x4<f32>();
    }
    let keys = params.mask.w * min(key + vec4(0u, 1u, 2u, 3u), vec4(params.keys - 1u));
    let at = params.mask.x * batch + params.mask.y * head + params.mask.z * rows;
    return mat4x4<f32>(bias_at(at.x + keys), bias_at(at.y + keys), bias_at(at.z + keys), bias_at(at.w + keys));
}

fn bias_at(at: vec4<u32>) -> vec4<f32> {
    return max(vec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]), vec4(HIDDEN));
}

// The factors of the weights of the queries `row` and after it, counted through all heads, and of keys from a multiple of
// four: word key mod 4 of the generator at the counter (key / 4, row).
fn kept_of(rows: vec4<u32>, key: u32) -> mat4x4<f32> {
    if (params.flags & DROPPED) == 0u {
        let one = vec4(1.0);
        return mat4x4<f32>(one, one, one, one);
    }
    return mat4x4<f32>(kept_at(rows.x, key), kept_at(rows.y, key), kept_at(rows.z, key), kept_at(rows.w, key));
}

fn kept_at(row: u32, key: u32) -> vec4<f32> {
    let counter = vec4(key / 4u, row, params.offset_low, params.offset_high);
    let random = philox(counter, vec2(params.seed_low, params.seed_high));
    return select(vec4(0.0), vec4(params.kept), random >= vec4(params.threshold));
}

// The products of numbers in the same place.
fn by_place(x: mat4x4<f32>, y: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x[0] * y[0], x[1] * y[1], x[2] * y[2], x[3] * y[3]);
}

// What weights of four rows are divided by, and the logarithm of their sum. Rows that see nothing become 0, and so do
// exp(HIDDEN - level) of them.
fn divisor_of(sum: vec4<f32>) -> vec4<f32> {
    if MASKED {
        return select(sum, vec4(1.0), sum == vec4(0.0));
    }
    return sum;
}

fn level_of(top: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    let level = top + log(sum);
    if MASKED {
        return select(level, vec4(0.0), sum == vec4(0.0));
    }
    return level;
}
