// Epilogue of products of matrices with any strides, number by number.

//#include "erf"
//#include "product_flags"

fn finish(sum: Elem, row: u32, column: u32, batch: u32) {
    let columns = params.n / WIDE;
    if row >= params.m || column >= columns {
        return;
    }
    let at = (batch * params.m + row) * columns + column;
    var x = sum;
    if (params.flags & BIAS) != 0u {
        x += bias[column];
    }
    if (params.flags & SIDE) != 0u {
        side[at] = x;
    }
    if (params.flags & RELU) != 0u {
        x = max(x, Elem(0.0));
    }
    if (params.flags & GELU) != 0u {
        x = 0.5 * x * (1.0 + erf(x * 0.70710678));
    }
    if (params.flags & RELU_SLOPE) != 0u {
        x = select(Elem(0.0), x, extra[at] > Elem(0.0));
    }
    if (params.flags & GELU_SLOPE) != 0u {
        let z = extra[at];
        x *= 0.5 * (1.0 + erf(z * 0.70710678)) + z * 0.39894228 * exp(-0.5 * z * z);
    }
    if (params.flags & EXTRA) != 0u {
        x += extra[at];
    }
    out[at] = x;
}
