// out = f(a b + bias) * g'(extra) + extra, as gemm_tiled, by the matrix units of a device
//
// The units multiply halves and add up in f32. Operands and terms are those of gemm_tiled. Numbers of a and b are scaled by
// powers of two before they become halves, so that small ones are not lost, and sums are scaled back; the column sums of b
// are made of the numbers as they are. A number beyond 65,504 becomes infinite, and so does what is made of it.
// Grid: x over blocks of 64 columns, y over blocks of 64 rows, z over the batch. A workgroup makes a tile of 64 x 64, each
// of its subgroups 2 x 2 blocks of it.
// Workgroup memory: 17.5 KiB, a slice of 32 along k of the 64 rows and of the 64 columns, and half of the tile.
// Accumulation order: that of the device, the same each time.
// How it got fast: it has met no hardware yet. By reading: (1) each number becomes a half once per tile; (2) the next
// slice's numbers are on their way while the units work; (3) rows in workgroup memory are 16 bytes longer than their
// numbers, so that they begin in different banks. Drivers unroll the loop over blocks of k themselves.
// Texts: subgroups of 32 and blocks of 16, as NVIDIA has them; of 64 (broad), as AMD has them; of 8 and blocks of 8
// (small), as lavapipe has them.

enable f16;
enable wgpu_cooperative_matrix;

alias Elem = vec4<f32>;
const WIDE = 4u;

//#include "product_strided"

struct Params {
    //#include "product_params"
    // Powers of two.
    a_scale: f32,
    b_scale: f32,
}

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> extra: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> side: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> params: Params;

const TILE = 64u;
const DEPTH = 32u;
const LANES = 128u; //#broad: const LANES = 256u;
const BLOCK = 16u; //#small: const BLOCK = 8u;
// Subgroups side by side.
const ACROSS = 2u; //#small: const ACROSS = 4u;
alias OfA = coop_mat16x16<f16, A>; //#small: alias OfA = coop_mat8x8<f16, A>;
alias OfB = coop_mat16x16<f16, B>; //#small: alias OfB = coop_mat8x8<f16, B>;
alias Sum = coop_mat16x16<f32, C>; //#small: alias Sum = coop_mat8x8<f32, C>;

// Distances between rows of a, depths of b and rows of the tile, in vec4.
const A_PITCH = 10u;
const B_PITCH = 18u;
const TILE_PITCH = 16u;

// Number r * A_PITCH + q holds depths 4 q to 4 q + 3 of row r.
var<workgroup> rows: array<vec4<f16>, 640>;
// Number d * B_PITCH + q holds columns 4 q to 4 q + 3 at depth d.
var<workgroup> columns: array<vec4<f16>, 576>;
// The upper row of blocks of each subgroup, then the lower one.
var<workgroup> tile: array<vec4<f32>, 512>;

//#include "product_blocks"

@compute @workgroup_size(128) //#broad: @compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) id: u32,
) {
    // Where there are more than this text expects, some do the same as others.
    let subgroup = id % (ACROSS * ACROSS);
    let top = group.y * TILE;
    let left = group.x * TILE;
    let of_a = local < LANES / 2u;
    // Depths that the invocations for a, or for b, load at once, by fours.
    let fours = LANES / 32u;
    let block = block_of(of_a, local % (LANES / 2u), fours, select(left, top, of_a), group.z);
    let scale = select(params.b_scale, params.a_scale, of_a);
    // Where the blocks of this subgroup begin.
    let x = (subgroup / ACROSS) * 2u * BLOCK * A_PITCH;
    let y = (subgroup % ACROSS) * 2u * BLOCK / 4u;
    var upper_left = Sum();
    var upper_right = Sum();
    var lower_left = Sum();
    var lower_right = Sum();
    var sum = vec4(0.0);
    var next = load(block, 0u);
    var further = load(block, 16u); //#broad: ;
    for (var start = 0u; start < params.k; start += DEPTH) {
        put(next, block, 0u, scale);
        put(further, block, 16u, scale); //#broad: ;
        sum += next[0] + next[1] + next[2] + next[3];
        sum += further[0] + further[1] + further[2] + further[3]; //#broad: ;
        workgroupBarrier();
        // The next one is on its way while this slice is used.
        next = load(block, start + DEPTH);
        further = load(block, start + DEPTH + 16u); //#broad: ;
        for (var at = 0u; at < DEPTH; at += BLOCK) {
            let x0 = coopLoadT<OfA>(&rows[x + at / 4u], A_PITCH);
            let x1 = coopLoadT<OfA>(&rows[x + BLOCK * A_PITCH + at / 4u], A_PITCH);
            let y0 = coopLoadT<OfB>(&columns[at * B_PITCH + y], B_PITCH);
            let y1 = coopLoadT<OfB>(&columns[at * B_PITCH + y + BLOCK / 4u], B_PITCH);
            upper_left = coopMultiplyAdd(x0, y0, upper_left);
            upper_right = coopMultiplyAdd(x0, y1, upper_right);
            lower_left = coopMultiplyAdd(x1, y0, lower_left);
            lower_right = coopMultiplyAdd(x1, y1, lower_right);
        }
        workgroupBarrier();
    }
    // naga wants names, not expressions, in coopStoreT.
    let at = (subgroup / ACROSS) * BLOCK * TILE_PITCH + y;
    let left_of_tile = &tile[at];
    let right_of_tile = &tile[at + BLOCK / 4u];
    let pitch = TILE_PITCH;
    let first = upper_left;
    let second = upper_right;
    let third = lower_left;
    let fourth = lower_right;
    coopStoreT(first, left_of_tile, pitch);
    coopStoreT(second, right_of_tile, pitch);
    workgroupBarrier();
    finish_half(0u, local, group);
    workgroupBarrier();
    coopStoreT(third, left_of_tile, pitch);
    coopStoreT(fourth, right_of_tile, pitch);
    workgroupBarrier();
    finish_half(1u, local, group);
    if group.y == 0u && (params.flags & SUMS) != 0u {
        workgroupBarrier();
        // One part of a column's sum for each of the invocations that loaded of it.
        if !of_a {
            tile[(block.depth / 4u) * 16u + block.quad] = sum;
        }
        workgroupBarrier();
        let column = left / 4u + local;
        if local < TILE / 4u && column < params.n / 4u {
            var total = vec4(0.0);
            for (var part = 0u; part < fours; part++) {
                total += tile[part * 16u + local];
            }
            side[group.z * (params.n / 4u) + column] = total;
        }
    }
}

// Stores a block's numbers, a depth in each column and so many further, as the units want them: along k if they are of a.
fn put(found: mat4x4<f32>, block: Block, further: u32, scale: f32) {
    let depth = block.depth + further;
    if block.of_a {
        let x = scale * transpose(found);
        let at = 4u * block.quad * A_PITCH + depth / 4u;
        rows[at] = vec4<f16>(x[0]);
        rows[at + A_PITCH] = vec4<f16>(x[1]);
        rows[at + 2u * A_PITCH] = vec4<f16>(x[2]);
        rows[at + 3u * A_PITCH] = vec4<f16>(x[3]);
    } else {
        let x = scale * found;
        let at = depth * B_PITCH + block.quad;
        columns[at] = vec4<f16>(x[0]);
        columns[at + B_PITCH] = vec4<f16>(x[1]);
        columns[at + 2u * B_PITCH] = vec4<f16>(x[2]);
        columns[at + 3u * B_PITCH] = vec4<f16>(x[3]);
    }
}

// Stores what the tile holds: of each two rows of blocks the upper one, or the lower one.
fn finish_half(half: u32, local: u32, group: vec3<u32>) {
    let unscale = 1.0 / (params.a_scale * params.b_scale);
    for (var at = local; at < 32u * TILE / 4u; at += LANES) {
        let row = at / TILE_PITCH;
        let of_tile = (row / BLOCK * 2u + half) * BLOCK + row % BLOCK;
        finish(
            unscale * tile[at],
            group.y * TILE + of_tile,
            group.x * TILE / 4u + at % TILE_PITCH,
            group.z,
        );
    }
}

fn quad_a(at: vec4<u32>) -> vec4<f32> {
    return a[at.x / 4u];
}

fn quad_b(at: vec4<u32>) -> vec4<f32> {
    return b[at.x / 4u];
}
