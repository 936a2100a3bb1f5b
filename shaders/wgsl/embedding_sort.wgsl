// sorted = (ids[t], t) by id, then by t
//
// ids [count], sorted [count, 2]; count counted in Elem for ids. A stable sort by counting: an entry's
// place is the number of entries that come before it.
// Grid: a workgroup per 64 entries, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: whole numbers only.
// How it got fast: count^2 comparisons beat cleverer sorts as long as a batch has some ten thousand
// entries: no barriers, no atomics, no passes, and all invocations of a workgroup read the same ids.
// Reading is a quarter of it with four ids a load.

alias Elem = vec4<i32>;
const WIDE = 4u;
const STEPS = Elem(0, 1, 2, 3);

struct Params {
    count: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<Elem>;
@group(0) @binding(1) var<storage, read_write> sorted: array<vec2<i32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let entry = (group.y * groups.x + group.x) * 64u + local;
    if entry >= params.count * WIDE {
        return;
    }
    let here = STEPS == Elem(i32(entry % WIDE));
    let id = total(select(Elem(0), ids[entry / WIDE], here));
    var before = Elem(0);
    var place = STEPS;
    for (var i = 0u; i < params.count; i++) {
        let other = ids[i];
        let earlier = (other == Elem(id)) & (place < Elem(i32(entry)));
        before += select(Elem(0), Elem(1), (other < Elem(id)) | earlier);
        place += Elem(i32(WIDE));
    }
    sorted[total(before)] = vec2(id, i32(entry));
}

// The sum of an element's components.
fn total(value: Elem) -> i32 {
    // vec4 of a single number repeats it.
    let v = vec4<i32>(value) * select(vec4(1, 0, 0, 0), vec4(1), WIDE == 4u);
    return v.x + v.y + v.z + v.w;
}
