// to_table[v] = sum over t with ids[t] = v of gradient[t],
// to_positions[p] = sum over t with t mod period = p of gradient[t]
//
// sorted [tokens, 2] (id and t, by id, then by t; from embedding_sort), gradient [tokens, width],
// to_table [vocabulary, width], to_positions [positions, width]: row-major; width counted in Elem. Rows
// without a token get 0. Ids that are no row of the table are left out.
// Grid: a workgroup per 64 / lanes pieces of rows, counted row after row of the grid: first those of
// to_table, then those of to_positions. A row is cut into params.blocks pieces; params.lanes invocations,
// a power of two up to 64, take a piece.
// Workgroup memory: none.
// Accumulation order: t ascending, one sum per element: no atomics, the same bits each time.
// How it got fast: (1) an invocation per column that walks over all tokens, as Burn has it; (2) each
// row finds its tokens by binary search among the sorted ids: it reads each gradient once.

alias Elem = vec4<f32>;
const WIDE = 4u;

struct Params {
    tokens: u32,
    width: u32,
    lanes: u32,
    blocks: u32,
    vocabulary: u32,
    positions: u32,
    period: u32,
}

@group(0) @binding(0) var<storage, read> sorted: array<vec2<i32>>;
@group(0) @binding(1) var<storage, read> gradient: array<Elem>;
@group(0) @binding(2) var<storage, read_write> to_table: array<Elem>;
@group(0) @binding(3) var<storage, read_write> to_positions: array<Elem>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let piece = (group.y * groups.x + group.x) * (64u / params.lanes) + local / params.lanes;
    let row = piece / params.blocks;
    if row >= params.vocabulary + params.positions {
        return;
    }
    let first = piece % params.blocks * params.lanes + local % params.lanes;
    let stride = params.blocks * params.lanes;
    if row < params.vocabulary {
        let id = i32(row);
        let start = lower_bound(id);
        for (var column = first; column < params.width; column += stride) {
            var sum = Elem(0.0);
            for (var i = start; i < params.tokens; i++) {
                let entry = sorted[i];
                if entry.x != id {
                    break;
                }
                sum += gradient[u32(entry.y) * params.width + column];
            }
            to_table[row * params.width + column] = sum;
        }
    } else {
        let position = row - params.vocabulary;
        for (var column = first; column < params.width; column += stride) {
            var sum = Elem(0.0);
            if position < params.period {
                for (var t = position; t < params.tokens; t += params.period) {
                    sum += gradient[t * params.width + column];
                }
            }
            to_positions[position * params.width + column] = sum;
        }
    }
}

// The first of the sorted entries whose id is not less.
fn lower_bound(id: i32) -> u32 {
    var low = 0u;
    var high = params.tokens;
    while low < high {
        let middle = (low + high) / 2u;
        if sorted[middle].x < id {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}
