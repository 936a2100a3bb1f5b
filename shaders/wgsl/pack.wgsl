// out[offset + i] = (accumulate ? out[offset + i] : 0) + scale g[i], for up to seven g at once
//
// g0 .. g6 of any lengths; out a flat vector in which each has a place that begins and ends at a
// multiple of 64. What a place holds behind its g becomes 0, and so does all of a place without one
// (length 0; any buffer may be bound).
// Grid: row after row over blocks of 1024 elements, the places one after the other (first_group).
// An invocation makes four runs of 4 elements.
// Workgroup memory: none.
// Accumulation order: one product and one sum per element.
// How it got fast: (1) a launch per tensor and one for the sum; (2) seven per launch: as many as
// fit beside the output, and the sum rides along.

struct Place {
    first_group: u32,
    length: u32,
    // In vec4.
    offset: u32,
    padded: u32,
}

struct Params {
    places: array<Place, 7>,
    scale: f32,
    accumulate: u32,
    groups_per_row: u32,
}

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
    for (var run = 0u; run < 4u; run++) {
        let at = (group - place.first_group) * 256u + run * 64u + lane;
        if at < place.padded {
            add(slot, place, at);
        }
    }
}

fn add(slot: u32, place: Place, at: u32) {
    let i = 4u * at + vec4(0u, 1u, 2u, 3u);
    // A buffer has at least one element, also where there is nothing to be read.
    let source = min(i, vec4(max(place.length, 1u) - 1u));
    var x = vec4(0.0);
    switch slot {
        case 0u: { x = vec4(g0[source.x], g0[source.y], g0[source.z], g0[source.w]); }
        case 1u: { x = vec4(g1[source.x], g1[source.y], g1[source.z], g1[source.w]); }
        case 2u: { x = vec4(g2[source.x], g2[source.y], g2[source.z], g2[source.w]); }
        case 3u: { x = vec4(g3[source.x], g3[source.y], g3[source.z], g3[source.w]); }
        case 4u: { x = vec4(g4[source.x], g4[source.y], g4[source.z], g4[source.w]); }
        case 5u: { x = vec4(g5[source.x], g5[source.y], g5[source.z], g5[source.w]); }
        default: { x = vec4(g6[source.x], g6[source.y], g6[source.z], g6[source.w]); }
    }
    x = select(vec4(0.0), params.scale * x, i < vec4(place.length));
    if params.accumulate != 0u {
        x += out[place.offset + at];
    }
    out[place.offset + at] = x;
}
