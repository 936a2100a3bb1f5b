//! Products by a device's matrix units: they multiply halves, add up in `f32`, and are several times as fast as its other
//! units.
//!
//! Gradients are smaller than halves can be, so products scale them up before they round them: the idea of loss scaling
//! (Micikevicius et al., Mixed Precision Training, 2018), here inside each product, since all tensors stay `f32`. The scale
//! falls when a sum is not finite, and then the sum is made again; it rises after many that were. Like
//! [`halves`](crate::halves), this is a process's own choice, for one device.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::kernel::{GEMM_MATRIX, GEMM_MATRIX_BROAD, GEMM_MATRIX_SMALL, Kernel};
use crate::launch::Adapter;

#[cfg(not(target_family = "wasm"))]
pub use trial::take;

/// The kernels, and the rows and columns of the matrices that each has the units multiply.
const TEXTS: [(u32, &Kernel); 3] = [
    (16, &GEMM_MATRIX),
    (16, &GEMM_MATRIX_BROAD),
    (8, &GEMM_MATRIX_SMALL),
];

/// The number of the text that suits the device, counted from 1; 0 for none.
static SUITS: AtomicUsize = AtomicUsize::new(0);

/// The same of the text that products take.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Gradients are scaled by two to this power.
static EXPONENT: AtomicI32 = AtomicI32::new(FIRST);

/// Sums in a row that were finite.
static FINITE: AtomicU32 = AtomicU32::new(0);

/// With it, a gradient of 1 is just below the largest half.
const FIRST: i32 = 15;
const HIGHEST: i32 = 30;
const FALL: i32 = 4;
/// After so many finite sums gradients are doubled.
const PATIENCE: u32 = 1000;

/// Products take the units that suit the device, if some do.
pub fn take_again() {
    EXPONENT.store(FIRST, Ordering::Relaxed);
    FINITE.store(0, Ordering::Relaxed);
    TAKEN.store(SUITS.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Products of this process take no matrix units, until they [are to again](take_again).
pub fn set_aside() {
    TAKEN.store(0, Ordering::Relaxed);
}

/// Whether products take matrix units.
pub fn taken() -> bool {
    TAKEN.load(Ordering::Relaxed) > 0
}

/// A sum of gradients is finite.
pub fn was_finite() {
    if taken() && FINITE.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
        FINITE.store(0, Ordering::Relaxed);
        let exponent = EXPONENT.load(Ordering::Relaxed);
        EXPONENT.store((exponent + 1).min(HIGHEST), Ordering::Relaxed);
    }
}

/// A sum of gradients is not finite. Scales them less from now on, or [sets the units aside](set_aside) where that did not
/// help.
pub fn was_not_finite() {
    FINITE.store(0, Ordering::Relaxed);
    if EXPONENT.fetch_sub(FALL, Ordering::Relaxed) < FALL {
        set_aside();
    }
}

/// What products scale gradients by before they round them.
pub(crate) fn gradient_scale() -> f32 {
    f32::powi(2.0, EXPONENT.load(Ordering::Relaxed))
}

/// The kernel that an adapter's products take, if rows are whole vec4.
pub(crate) fn kernel(adapter: Adapter) -> Option<&'static Kernel> {
    let number = TAKEN.load(Ordering::Relaxed);
    (adapter == Adapter::Gpu && number > 0).then(|| TEXTS[number - 1].1)
}

#[cfg(not(target_family = "wasm"))]
mod trial {
    //! Finds the kernel that suits a device.

    use std::sync::atomic::Ordering;

    use burn::tensor::{Device, Tensor, TensorData};

    use super::{SUITS, TEXTS, take_again};
    use crate::check::compile;
    use crate::cpu::gemm::{Matrix, column_sums, product};
    use crate::kernel::{GEMM_MATRIX, Kernel, KernelError};
    use crate::launch::{Adapter, adapter_of, contiguous, from_raw, raw, reshaped};
    use crate::ops::gemm::{Epilogue, Operand, gemm_by};

    /// From now on, products of this process take the device's matrix units. `blocks` are the sizes of square matrices of
    /// halves that the driver says it multiplies with sums in `f32`. The CPU backend goes on as before.
    ///
    /// # Errors
    ///
    /// If no kernel suits the device. Each is tried, and its results are compared with the processor's: drivers do not
    /// say how many invocations share a matrix, and a wrong guess shows in the results.
    pub fn take(device: &Device, blocks: &[u32]) -> Result<(), KernelError> {
        let fail = |problem: &str| KernelError {
            kernel: GEMM_MATRIX.name.to_owned(),
            problem: problem.to_owned(),
        };
        let mut found = Err(fail("the device has no matrix units for halves with sums in f32"));
        if adapter_of(device) != Some(Adapter::Gpu) {
            return found;
        }
        if SUITS.load(Ordering::Relaxed) > 0 {
            take_again();
            return Ok(());
        }
        for (number, (_, kernel)) in (1..).zip(TEXTS).filter(|(_, (block, _))| blocks.contains(block)) {
            found = compile(kernel, device);
            if found.is_ok() {
                if is_right(kernel, device) {
                    SUITS.store(number, Ordering::Relaxed);
                    take_again();
                    return Ok(());
                }
                found = Err(fail("its results differ from the processor's"));
            }
        }
        found
    }

    /// Whether a product is right that has ragged edges, pieces of k, a scaled gradient and sums of columns, and whether it
    /// shows that a number is too large for halves.
    fn is_right(kernel: &'static Kernel, device: &Device) -> bool {
        const SIZES: [usize; 3] = [70, 132, 260];
        let [m, n, k] = SIZES;
        // Sums of products of such numbers are exact in f32, in any order.
        let numbers = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|at| (at * step % 17) as f32 / 8.0 - 1.0).collect()
        };
        let (mut a, b) = (numbers(k * m, 5), numbers(k * n, 7));
        let device = device.clone().without_autodiff();
        let multiplied = |a: &[f32]| -> Option<[Vec<f32>; 2]> {
            let [x, y] = [a, &b].map(|numbers| {
                let data = TensorData::new(numbers.to_vec(), [k, numbers.len() / k]);
                raw(Tensor::<2>::from_data(data, &device))
            });
            let (x, y) = (x?, y?);
            let epilogue = Epilogue {
                sums: true,
                ..Epilogue::default()
            };
            let (first, second) = (Operand::of(&x).transposed(), Operand::of(&y).gradient());
            let (out, sums) = gemm_by(Some(kernel), first, second, epilogue);
            let [out, sums] = [(out, m * n), (sums?, n)].map(|(tensor, length)| {
                let read = from_raw::<1>(reshaped(contiguous(tensor), [length].into())).try_into_data();
                read.ok()?.try_into_vec().ok()
            });
            Some([out?, sums?])
        };
        let transposed = Matrix::row_major(&a, m).transposed();
        let expected = [
            product(SIZES, transposed, Matrix::row_major(&b, n)),
            column_sums(&b, n),
        ];
        let is_equal = multiplied(&a).is_some_and(|found| found == expected);
        a[0] = 1e5;
        let shows = |[out, _]: [Vec<f32>; 2]| out.iter().any(|x| !x.is_finite());
        is_equal && multiplied(&a).is_some_and(shows)
    }
}
