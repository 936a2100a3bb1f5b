// to_table[v] = sum over t with ids[t] = first + v of gradient[t],
// to_positions[p] = sum over t with t mod period = p of gradient[t]
//
// sorted [tokens, 2] (id and t, by id, then by t; from embedding_sort), gradient [tokens, width],
// to_table [rows, width], to_positions [positions, width]: row-major; width counted in Elem. Rows without a
// token get 0. Ids that are no row of the table are left out.
// Grid: a workgroup per 64 / lanes pieces of rows, counted row after row of the grid: first those of
// to_table, then those of to_positions. A row is cut into params.blocks pieces; params.lanes invocations,
// a power of two up to 64, take a piece.
// Workgroup memory: none.
// Accumulation order: t ascending, one sum per element: no atomics, the same bits each time.
// How it got fast: (1) an invocation per column that walks over all tokens, as Burn has it; (2) each
// row finds its tokens by binary search among the sorted ids: it reads each gradient once; (3) four
// tokens at a time, so that their loads do not wait for each other: some ids are in every tenth token.

//#include "elem"

struct Params {
    tokens: u32,
    width: u32,
    lanes: u32,
    blocks: u32,
    rows: u32,
    first: u32,
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
    if row >= params.rows + params.positions {
        return;
    }
    let first = piece % params.blocks * params.lanes + local % params.lanes;
    let stride = params.blocks * params.lanes;
    if row < params.rows {
        let id = i32(params.first + row);
        let start = lower_bound(id, 0u, params.tokens);
        // Most rows have few tokens or none: the end is near.
        var reach = 1u;
        while start + reach < params.tokens && sorted[start + reach].x == id {
            reach *= 2u;
        }
        let end = lower_bound(id + 1, start, min(start + reach, params.tokens));
        for (var column = first; column < params.width; column += stride) {
            var sum = Elem(0.0);
            var i = start;
            for (; i + 4u <= end; i += 4u) {
                let g0 = source(i, column);
                let g1 = source(i + 1u, column);
                let g2 = source(i + 2u, column);
                let g3 = source(i + 3u, column);
                sum = sum + g0 + g1 + g2 + g3;
            }
            for (; i < end; i++) {
                sum += source(i, column);
            }
            to_table[row * params.width + column] = sum;
        }
    } else {
        let position = row - params.rows;
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

// The gradient of a sorted entry's token.
fn source(entry: u32, column: u32) -> Elem {
    return gradient[u32(sorted[entry].y) * params.width + column];
}

// The first of the sorted entries from start to before end whose id is not less, or else end.
fn lower_bound(id: i32, start: u32, end: u32) -> u32 {
    var low = start;
    var high = end;
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
