// Of all attention kernels.
struct Params {
    // Where heads lie, in vec4: the first number, and the steps from a sequence, a head and a token to the next.
    q: vec4<u32>,
    k: vec4<u32>,
    v: vec4<u32>,
    out: vec4<u32>,
    d_out: vec4<u32>,
    d_q: vec4<u32>,
    d_k: vec4<u32>,
    d_v: vec4<u32>,
    // The mask's steps from a sequence, a head, a query and a key to the next, in numbers; 0 where all share it.
    mask: vec4<u32>,
    queries: u32,
    keys: u32,
    // Of the queries; so many of them share a head of keys and values.
    heads: u32,
    group: u32,
    // Of a head, in vec4.
    width: u32,
    // Heads of queries in all sequences.
    pairs: u32,
    // Parts of a head's columns, each a unit's.
    chunks: u32,
    flags: u32,
    scale: f32,
    // Workgroups that make slopes of queries.
    each: u32,
    // What weights that are not dropped are multiplied by; the least random word that keeps a weight; the generator's key
    // and counter, lower halves first.
    kept: f32,
    threshold: u32,
    seed_low: u32,
    seed_high: u32,
    offset_low: u32,
    offset_high: u32,
}

const CAUSAL = 1u;
const BIASED = 2u;
const DROPPED = 4u;

// The score of what is hidden, and a maximum that it does not reach: weights of rows that see nothing are 0.
const HIDDEN = -1e30;
const LOWEST = -5e29;

fn is_causal() -> bool {
    return (params.flags & CAUSAL) != 0u;
}

// Where a head of a sequence begins. With a vector as the argument, llvmpipe takes half as long again for slopes.
fn begin_of(start: u32, of_batch: u32, of_head: u32, batch: u32, head: u32) -> u32 {
    return start + of_batch * batch + of_head * head;
}
