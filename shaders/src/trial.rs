//! Finds the kernel for [`matrices`] that suits a device.

use burn::tensor::{Device, Tensor, TensorData};

use crate::check::compile;
use crate::cpu::gemm::{Matrix, column_sums, product};
use crate::kernel::{GEMM_MATRIX, Kernel, KernelError};
use crate::launch::{Adapter, adapter_of, contiguous, from_raw, raw, reshaped};
use crate::matrices::{self, TEXTS};
use crate::ops::gemm::{Epilogue, Operand, gemm_by};

/// From now on, products of this process may take the device's matrix units: those [within](matrices::within). `blocks` are
/// the sizes of square matrices of halves that the driver says it multiplies with sums in `f32`. The CPU backend goes on as
/// before.
///
/// # Errors
///
/// If no kernel suits the device. Each is tried, and its results are compared with the processor's: drivers do not
/// say how many invocations share a matrix, and a wrong guess shows in the results.
pub fn take_units(device: &Device, blocks: &[u32]) -> Result<(), KernelError> {
    let fail = |problem: &str| KernelError {
        kernel: GEMM_MATRIX.name.to_owned(),
        problem: problem.to_owned(),
    };
    let mut found = Err(fail("the device has no matrix units for halves with sums in f32"));
    if adapter_of(device) != Some(Adapter::Gpu) {
        return found;
    }
    if matrices::take_again() {
        return Ok(());
    }
    for (number, (_, kernel)) in (1..).zip(TEXTS).filter(|(_, (block, _))| blocks.contains(block)) {
        match compile(kernel, device) {
            Ok(()) if is_right(kernel, device) => {
                matrices::suit(number);
                return Ok(());
            }
            Ok(()) => found = Err(fail("its results differ from the processor's")),
            refused => found = refused,
        }
    }
    found
}

/// Rows, columns and depths of the trial. Rows in memory are whole vec4, or another kernel would make the product.
pub(crate) const SIZES: [usize; 3] = [72, 132, 260];

/// Whether a product is right that has ragged edges, pieces of k, a scaled gradient and sums of columns, and whether it
/// shows that a number is too large for halves.
fn is_right(kernel: &'static Kernel, device: &Device) -> bool {
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
    let before = kernel.launches();
    let is_equal = multiplied(&a).is_some_and(|found| found == expected);
    a[0] = 1e5;
    let is_infinite = |[out, _]: [Vec<f32>; 2]| out.iter().any(|x| !x.is_finite());
    let shows = multiplied(&a).is_some_and(is_infinite);
    is_equal && shows && kernel.launches() == before + 2
}
