// out[offset + i] = (accumulate ? out[offset + i] : 0) + scale g[i], for up to seven g at once
//
// g0 .. g6 of any lengths; out a flat vector in which each has a place that begins and ends at a
// multiple of 64. What a place holds behind its g becomes 0, and so does all of a place without one
// (length 0; any buffer may be bound).
// Grid: row after row over blocks of 1024 elements, the places one after the other (first_group).
// An invocation makes four runs of 4 elements.
// Workgroup memory: none.
// Accumulation order: one product and one sum per element.
// How it got fast: it did not have to: it takes the tensors whose length is no multiple of 4, which
// are few and small.

//#include "pack_places"

@group(0) @binding(0) var<storage, read> g0: array<f32>;
@group(0) @binding(1) var<storage, read> g1: array<f32>;
@group(0) @binding(2) var<storage, read> g2: array<f32>;
@group(0) @binding(3) var<storage, read> g3: array<f32>;
@group(0) @binding(4) var<storage, read> g4: array<f32>;
@group(0) @binding(5) var<storage, read> g5: array<f32>;
@group(0) @binding(6) var<storage, read> g6: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = workgroup.y * params.groups_per_row + workgroup.x;
    // Places that are not used have a first group beyond all.
    var slot = 0u;
    for (var next = 1u; next < 7u; next++) {
        slot += select(0u, 1u, group >= params.places[next].first_group);
    }
    let place = params.places[slot];
    let first = (group - place.first_group) * 256u;
    let end = min(first + 256u, place.padded);
    // The one loop that has something to do; the others end before they load anything.
    var at = first + lane;
    for (; slot == 0u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g0[i.x], g0[i.y], g0[i.z], g0[i.w]));
    }
    for (; slot == 1u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g1[i.x], g1[i.y], g1[i.z], g1[i.w]));
    }
    for (; slot == 2u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g2[i.x], g2[i.y], g2[i.z], g2[i.w]));
    }
    for (; slot == 3u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g3[i.x], g3[i.y], g3[i.z], g3[i.w]));
    }
    for (; slot == 4u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g4[i.x], g4[i.y], g4[i.z], g4[i.w]));
    }
    for (; slot == 5u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g5[i.x], g5[i.y], g5[i.z], g5[i.w]));
    }
    for (; slot == 6u && at < end; at += 64u) {
        let i = four(at, place);
        finish(place, at, vec4(g6[i.x], g6[i.y], g6[i.z], g6[i.w]));
    }
}

fn four(at: u32, place: Place) -> vec4<u32> {
    // A buffer has at least one element, also where there is nothing to be read.
    return min(4u * at + vec4(0u, 1u, 2u, 3u), vec4(max(place.length, 1u) - 1u));
}

fn finish(place: Place, at: u32, g: vec4<f32>) {
    let i = 4u * at + vec4(0u, 1u, 2u, 3u);
    var x = select(vec4(0.0), params.scale * g, i < vec4(place.length));
    if params.accumulate != 0u {
        x += out[place.offset + at];
    }
    out[place.offset + at] = x;
}
