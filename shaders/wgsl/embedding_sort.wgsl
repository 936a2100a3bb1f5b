// sorted = (ids[t], t) by id, then by t
//
// ids [count], sorted [WIDE count, 2]; count counted in Elem. A stable sort by counting: an entry's place
// is the number of entries that come before it.
// Grid: a workgroup per 64 elements, counted row after row of the grid.
// Workgroup memory: none.
// Accumulation order: whole numbers only.
// How it got fast: count^2 comparisons beat cleverer sorts as long as a batch has some ten thousand
// entries: no barriers, no atomics, no passes, and all invocations of a workgroup read the same ids.
// (1) an entry per invocation; (2) four ids a load; (3) four entries per invocation: 16 comparisons a
// load, each of ids alone, since it is known before which blocks of ids come earlier.

alias Elem = vec4<i32>; //#scalar: alias Elem = i32;
const WIDE = 4u; //#scalar: const WIDE = 1u;
const HIGHEST = 0x7ffffffe;

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
    let block = (group.y * groups.x + group.x) * 64u + local;
    if block >= params.count {
        return;
    }
    // The last id is taken for the last but one, so that 1 can be added: no table has either.
    let mine = min(ids[block], Elem(HIGHEST));
    var places = vec4(0);
    for (var i = 0u; i < params.count; i++) {
        // vec4 of a single number repeats it.
        let other = vec4<i32>(min(ids[i], Elem(HIGHEST)));
        // Equal ids come before if their entries do.
        let bound = vec4<i32>(mine) + select(0, 1, i < block);
        places += select(vec4(0), vec4(1), vec4(other.x) < bound);
        if WIDE == 4u {
            places += select(vec4(0), vec4(1), vec4(other.y) < bound);
            places += select(vec4(0), vec4(1), vec4(other.z) < bound);
            places += select(vec4(0), vec4(1), vec4(other.w) < bound);
        }
    }
    let entry = i32(block * WIDE);
    let id = vec4<i32>(ids[block]);
    if WIDE == 4u {
        let m = vec4<i32>(mine);
        places.y += i32(m.x == m.y);
        places.z += i32(m.x == m.z) + i32(m.y == m.z);
        places.w += i32(m.x == m.w) + i32(m.y == m.w) + i32(m.z == m.w);
        sorted[places.y] = vec2(id.y, entry + 1);
        sorted[places.z] = vec2(id.z, entry + 2);
        sorted[places.w] = vec2(id.w, entry + 3);
    }
    sorted[places.x] = vec2(id.x, entry);
}
