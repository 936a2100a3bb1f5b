// out[offset + i] = (accumulate ? out[offset + i] : 0) + scale g[i], for up to seven g at once
//
// g0 .. g6 of lengths that are multiples of 4; out a flat vector in which each has a place that begins
// and ends at a multiple of 64. What a place holds behind its g becomes 0, and so does all of a place
// without one (length 0; any buffer may be bound).
// Grid: row after row over blocks of 1024 elements, the places one after the other (first_group).
// An invocation makes four runs of 4 elements.
// Workgroup memory: none.
// Accumulation order: one product and one sum per element.
// How it got fast: (1) a launch per tensor and one for the sum; (2) seven per launch, as many as fit
// beside the output, and the sum rides along; (3) loops instead of a switch, all of whose cases are
// loaded where lanes are emulated: a fifth faster; (4) vec4 loads: twice as fast.

//#include "pack_places"

@group(0) @binding(0) var<storage, read> g0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> g1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> g2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> g3: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> g4: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> g5: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> g6: array<vec4<f32>>;
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
    // A buffer has at least one element, also where there is nothing to be read.
    let last = max(place.length / 4u, 1u) - 1u;
    // The one loop that has something to do; the others end before they load anything.
    var at = first + lane;
    for (; slot == 0u && at < end; at += 64u) {
        finish(place, at, g0[min(at, last)]);
    }
    for (; slot == 1u && at < end; at += 64u) {
        finish(place, at, g1[min(at, last)]);
    }
    for (; slot == 2u && at < end; at += 64u) {
        finish(place, at, g2[min(at, last)]);
    }
    for (; slot == 3u && at < end; at += 64u) {
        finish(place, at, g3[min(at, last)]);
    }
    for (; slot == 4u && at < end; at += 64u) {
        finish(place, at, g4[min(at, last)]);
    }
    for (; slot == 5u && at < end; at += 64u) {
        finish(place, at, g5[min(at, last)]);
    }
    for (; slot == 6u && at < end; at += 64u) {
        finish(place, at, g6[min(at, last)]);
    }
}

fn finish(place: Place, at: u32, g: vec4<f32>) {
    var x = select(vec4(0.0), params.scale * g, 4u * at < place.length);
    if params.accumulate != 0u {
        x += out[place.offset + at];
    }
    out[place.offset + at] = x;
}
