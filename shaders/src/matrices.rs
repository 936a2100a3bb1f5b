//! Products by a device's matrix units: they multiply halves, add up in `f32`, and are several times as fast as its other
//! units.
//!
//! Gradients are smaller than halves can be, so products scale them up before they round them. That is loss scaling
//! (Micikevicius et al., Mixed Precision Training, 2018) inside each product, since all tensors stay `f32`. The scale falls when a sum is not finite, and then the sum is made again; it rises after many that were. Like
//! [`halves`](crate::halves), this is a process's own choice, for one device.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::kernel::{GEMM_MATRIX, GEMM_MATRIX_BROAD, GEMM_MATRIX_SMALL, Kernel};
use crate::launch::Adapter;

/// The kernels, and the rows and columns of the matrices that each has the units multiply.
pub(crate) const TEXTS: [(u32, &Kernel); 3] = [
    (16, &GEMM_MATRIX),
    (16, &GEMM_MATRIX_BROAD),
    (8, &GEMM_MATRIX_SMALL),
];

/// The number of the text that suits the device, counted from 1; 0 for none.
static SUITS: AtomicUsize = AtomicUsize::new(0);

/// The number of the text that products take.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Gradients are scaled by two to this power.
static EXPONENT: AtomicI32 = AtomicI32::new(FIRST);

/// Sums in a row that were finite.
static FINITE: AtomicU32 = AtomicU32::new(0);

/// With it, a gradient of 1 is just below the largest half.
const FIRST: i32 = 15;
const HIGHEST: i32 = 30;
const FALL: i32 = 4;
/// Finite sums in a row after which the scale doubles.
const PATIENCE: u32 = 1000;

/// The text of this number suits the device, and products take it.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn take(number: usize) {
    SUITS.store(number, Ordering::Relaxed);
    take_again();
}

/// Products take the text that suits the device, if one does. Returns whether one does.
pub fn take_again() -> bool {
    EXPONENT.store(FIRST, Ordering::Relaxed);
    FINITE.store(0, Ordering::Relaxed);
    let number = SUITS.load(Ordering::Relaxed);
    TAKEN.store(number, Ordering::Relaxed);
    number > 0
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
