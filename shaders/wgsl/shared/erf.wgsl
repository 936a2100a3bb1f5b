// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: error below 1.5e-7.
fn erf(x: Elem) -> Elem {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return sign(x) * (1.0 - poly * exp(-x * x));
}
