// out[t] = table[ids[t]] + positions[t mod period]
//
// ids [tokens], table [rows, width], positions [at least period, width], out [tokens, width]: row-major;
// width counted in Elem. Without POSITIONS nothing is added. The table holds the rows from params.first on
// of one that has params.vocabulary: other rows of that one count as 0, and an id that is none of them makes
// its row params.invalid.
// Grid: a workgroup per 64 / lanes pieces of rows, counted row after row of the grid. A row is cut into
// params.blocks pieces; params.lanes invocations, a power of two up to 64, take a piece.
// Workgroup memory: none.
// Accumulation order: no sums of more than two.
// How it got fast: (1) gather, then an addition of its own; (2) both in one launch.

//#include "elem"

struct Params {
    tokens: u32,
    width: u32,
    lanes: u32,
    blocks: u32,
    flags: u32,
    rows: u32,
    first: u32,
    vocabulary: u32,
    period: u32,
    invalid: f32,
}

const POSITIONS = 1u;

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> table: array<Elem>;
@group(0) @binding(2) var<storage, read> positions: array<Elem>;
@group(0) @binding(3) var<storage, read_write> out: array<Elem>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let piece = (group.y * groups.x + group.x) * (64u / params.lanes) + local / params.lanes;
    let token = piece / params.blocks;
    if token >= params.tokens {
        return;
    }
    let id = ids[token];
    let known = id >= 0 && u32(id) < params.vocabulary;
    let place = u32(id) - params.first;
    let here = known && place < params.rows;
    let source = select(0u, place, here) * params.width;
    let position = token % params.period * params.width;
    let first = piece % params.blocks * params.lanes + local % params.lanes;
    for (var i = first; i < params.width; i += params.blocks * params.lanes) {
        var row = Elem(select(params.invalid, 0.0, known));
        if here {
            row = table[source + i];
        }
        if (params.flags & POSITIONS) != 0u {
            row += positions[position + i];
        }
        out[token * params.width + i] = row;
    }
}
