// out = queries and keys of qkv turned by their token's angles; values as they are (Su et al., 2021)
//
// qkv and out [batch, tokens, 3, heads, d]; d = 4 width; table [tokens, d] holds cosine and sine of an
// angle in turn. Neighbours (x, y) become (x cos - y sin, x sin + y cos); turn = -1 is the way back,
// which is also the backward pass.
// Grid: rows of workgroups of 64; an invocation turns two pairs.
// Workgroup memory: none.
// Accumulation order: two products a sum.
// How it got fast: (1) one load, one load from the table and one store for 4 numbers; no sines here.

struct Params {
    count: u32,
    tokens: u32,
    inner: u32,
    width: u32,
    turn: f32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> table: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = (group.y * groups.x + group.x) * 64u + lane;
    if at >= params.count {
        return;
    }
    let x = qkv[at];
    let column = at % (3u * params.inner);
    let token = at / (3u * params.inner) % params.tokens;
    let angle = table[token * params.width + column % params.width];
    let cosine = angle.xxzz;
    let sine = params.turn * vec4(-angle.y, angle.y, -angle.w, angle.w);
    out[at] = select(x * cosine + x.yxwz * sine, x, column >= 2u * params.inner);
}
