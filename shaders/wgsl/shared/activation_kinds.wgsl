// Which activation function, and of how many elements.

//#include "erf"

struct Params {
    count: u32,
    kind: u32,
}

const RELU = 1u;
const GELU = 2u;
const GELU_TANH = 4u;

fn activated(v: Elem) -> Elem {
    if params.kind == RELU {
        return max(v, Elem(0.0));
    } else if params.kind == GELU {
        return 0.5 * v * (1.0 + erf(v * 0.70710678));
    } else if params.kind == GELU_TANH {
        return v * gate_of(v);
    }
    return v / (1.0 + exp(-v));
}

fn slope_of(v: Elem) -> Elem {
    if params.kind == RELU {
        return select(Elem(0.0), Elem(1.0), v > Elem(0.0));
    } else if params.kind == GELU {
        return 0.5 * (1.0 + erf(v * 0.70710678)) + v * 0.39894228 * exp(-0.5 * v * v);
    } else if params.kind == GELU_TANH {
        let s = gate_of(v);
        return s + v * s * (1.0 - s) * (1.5957691 + 0.21406445 * v * v);
    }
    let s = 1.0 / (1.0 + exp(-v));
    return s * (1.0 + v * (1.0 - s));
}

// (1 + tanh(u)) / 2 for u = sqrt(2 / pi) (v + 0.044715 v^3), without a tanh, which some devices cannot take of large u.
fn gate_of(v: Elem) -> Elem {
    return 1.0 / (1.0 + exp(-1.5957691 * (v + 0.044715 * v * v * v)));
}
