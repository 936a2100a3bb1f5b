//! Products against their definition, bit for bit, with each of the instruction sets that this processor has.

use super::*;

/// Numbers that have no pattern.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The product by its definition.
fn by_definition([m, n, k]: [usize; 3], a: Matrix<f32>, b: Matrix<f32>, fused: bool) -> Vec<f32> {
    let depth = k.div_ceil(k.div_ceil(512)).max(1);
    let number = |i: usize, j: usize| {
        let factors = |l: usize| (a.data[i * a.row + l * a.column], b.data[l * b.row + j * b.column]);
        let block = |start: usize| {
            (start..k.min(start + depth))
                .map(factors)
                .fold(
                    0.0f32,
                    |sum, (x, y)| if fused { x.mul_add(y, sum) } else { sum + x * y },
                )
        };
        (0..k).step_by(depth).map(block).reduce(|sum, block| sum + block)
    };
    (0..m)
        .flat_map(|i| (0..n).map(move |j| (i, j)))
        .map(|(i, j)| number(i, j).unwrap_or(0.0))
        .collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

type Rows = fn(&mut [f32], [usize; 2], Matrix<f32>, Matrix<f32>);

/// Each kind of processor that this one can stand for, and whether it has fused multiply-add.
fn kinds() -> Vec<(&'static str, bool, Rows)> {
    let mut kinds: Vec<(&str, bool, Rows)> = vec![
        ("plain, fused", true, |out, sizes, a, b| {
            strips::<Plain<4, true>, 4, 4, 6, _, _>(out, sizes, a, b)
        }),
        ("plain", false, |out, sizes, a, b| {
            strips::<Plain<4, false>, 4, 2, 4, _, _>(out, sizes, a, b)
        }),
    ];
    #[cfg(target_arch = "x86_64")]
    {
        use crate::cpu::processor::{has_avx2, has_avx512};
        if has_avx2() {
            // SAFETY: this processor has it.
            kinds.push(("AVX2", true, |out, sizes, a, b| unsafe {
                rows_avx2(out, sizes, a, b)
            }));
        }
        if has_avx512() {
            // SAFETY: this processor has it.
            kinds.push(("AVX-512", true, |out, sizes, a, b| unsafe {
                rows_avx512(out, sizes, a, b)
            }));
        }
    }
    kinds
}

/// The stock tasks' products, those that a share of one or two samples makes, and whatever else there may be.
fn shapes() -> Vec<[usize; 3]> {
    let mut shapes = vec![
        [64, 128, 784],
        [784, 128, 64],
        [64, 10, 128],
        [2, 10, 128],
        [1, 128, 10],
        [2, 128, 10],
        [192, 384, 128],
        [128, 384, 192],
        [192, 128, 384],
        [64, 65, 128],
        [65, 128, 768],
        [64, 128, 65],
        [3, 300, 1100],
        [0, 4, 4],
        [4, 0, 4],
        [4, 4, 0],
    ];
    let size = |x: &f32, largest: f32| 1 + ((x + 1.0) * 0.5 * largest) as usize;
    for of in numbers(90, 7).chunks_exact(3) {
        shapes.push([size(&of[0], 40.0), size(&of[1], 80.0), size(&of[2], 60.0)]);
    }
    shapes
}

#[test]
fn all_kinds_of_processors_make_the_same_bits() {
    for [m, n, k] in shapes() {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let lies = [Matrix::row_major(&a, k), Matrix::row_major(&a, m).transposed()];
        let second = [Matrix::row_major(&b, n), Matrix::row_major(&b, k).transposed()];
        for (a, b) in lies.into_iter().flat_map(|a| second.map(|b| (a, b))) {
            if m * n * k == 0 {
                assert_eq!(product([m, n, k], a, b), vec![0.0; m * n]);
                continue;
            }
            let expected = [false, true].map(|fused| bits(&by_definition([m, n, k], a, b, fused)));
            for (name, fused, rows) in kinds() {
                let mut found = vec![f32::NAN; m * n];
                rows(&mut found, [n, k], a, b);
                let expected = &expected[usize::from(fused)];
                assert!(bits(&found) == *expected, "{name}: {m} x {n} x {k}");
            }
        }
    }
}

#[test]
fn few_rows_are_columns_of_the_same_bits() {
    for m in [1, 5, 32] {
        let (n, k) = (70, 600);
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
        let (a, b) = (Matrix::row_major(&a, k), Matrix::row_major(&b, k).transposed());
        let mut as_rows = vec![0.0; m * n];
        rows(&mut as_rows, [n, k], a, b);
        assert_eq!(bits(&product([m, n, k], a, b)), bits(&as_rows));
    }
}

#[test]
fn threads_change_no_bit() {
    let [m, n, k] = [250, 300, 600];
    let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
    let (a, b) = (Matrix::row_major(&a, k), Matrix::row_major(&b, n));
    let mut alone = vec![0.0; m * n];
    rows(&mut alone, [n, k], a, b);
    assert_eq!(bits(&product([m, n, k], a, b)), bits(&alone));
}
