// Parameters of products of matrices in rows of vec4.

//#include "product_flags"

struct Params {
    m: u32,
    n: u32,
    k: u32,
    a_row: u32,
    b_row: u32,
    a_batch: u32,
    b_batch: u32,
    flags: u32,
}
