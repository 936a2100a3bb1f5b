// The largest of an element's components.
fn peak(value: Elem) -> f32 {
    let v = vec4<f32>(value);
    return max(max(v.x, v.y), max(v.z, v.w));
}
