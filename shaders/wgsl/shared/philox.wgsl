// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).
fn philox(start: vec4<u32>, start_key: vec2<u32>) -> vec4<u32> {
    var counter = start;
    var key = start_key;
    for (var round = 0u; round < 10u; round++) {
        let factors = vec2(0xd2511f53u, 0xcd9e8d57u);
        let low = factors * counter.xz;
        let high = high_product(factors, counter.xz);
        counter = vec4(high.y ^ counter.y ^ key.x, low.y, high.x ^ counter.w ^ key.y, low.x);
        key += vec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}

// The upper halves of 64-bit products, from products of 16-bit halves.
fn high_product(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let half = vec2(0xffffu);
    let shift = vec2(16u);
    let low = (a & half) * (b & half);
    let first = (a >> shift) * (b & half) + (low >> shift);
    let second = (a & half) * (b >> shift) + (first & half);
    return (a >> shift) * (b >> shift) + (first >> shift) + (second >> shift);
}
