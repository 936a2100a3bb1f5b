// The sum of an element's components; vec4 of a single number repeats it.
fn total(value: Elem) -> f32 {
    let v = vec4<f32>(value);
    return (v.x + v.y + v.z + v.w) * (f32(WIDE) / 4.0);
}
