// A tile of rows in registers: how four numbers of b are stored, and how a row is taken out of the tile.

//#include "pick"
//#include "product_vectors"

// What four numbers of b are stored as.
alias Four = vec4<f32>; //#halves: alias Four = vec2<u32>;

fn four(x: Four) -> vec4<f32> {
    return vec4<f32>(x); //#halves: return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}
