//! Products by a device's matrix units: they multiply halves, add up in `f32`, and are several times as fast as its other
//! units.
//!
//! Gradients are smaller than halves can be, so products scale them up before they round them. That is loss scaling
//! (Micikevicius et al., Mixed Precision Training, 2018) inside each product, since all tensors stay `f32`. The caller says
//! which sums were finite, and makes those again that were not: the scale falls then, and rises after many that were. Like
//! [`halves`](crate::halves), the choice holds for a process, which has one device. But products take the units only
//! [within](within) work whose result is checked.

use std::cell::Cell;
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

thread_local! {
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, products of its thread take the device's matrix units, if a kernel suits them.
#[derive(Debug)]
#[must_use]
pub struct Within {
    before: bool,
}

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.set(self.before);
    }
}

/// Products of this thread take the device's matrix units, until what comes back is dropped. Halves end at
/// 65,504, so results may not be finite that are so in `f32`: the caller must look, and make them again.
pub fn within() -> Within {
    Within {
        before: WITHIN.replace(true),
    }
}

/// Whether products of this thread take matrix units now.
pub fn taken() -> bool {
    WITHIN.get() && TAKEN.load(Ordering::Relaxed) > 0
}

/// The text of this number suits the device.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn suit(number: usize) {
    SUITS.store(number, Ordering::Relaxed);
    take_again();
}

/// Products take the text that suits the device, if one does, with the scale as it was at first. Returns whether one does.
pub fn take_again() -> bool {
    EXPONENT.store(FIRST, Ordering::Relaxed);
    FINITE.store(0, Ordering::Relaxed);
    let number = SUITS.load(Ordering::Relaxed);
    TAKEN.store(number, Ordering::Relaxed);
    number > 0
}

/// No products of this process take matrix units, until they are [taken again](take_again).
pub fn set_aside() {
    TAKEN.store(0, Ordering::Relaxed);
}

/// A sum that the units had a part in is finite.
pub fn was_finite() {
    if FINITE.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
        FINITE.store(0, Ordering::Relaxed);
        let exponent = EXPONENT.load(Ordering::Relaxed);
        EXPONENT.store((exponent + 1).min(HIGHEST), Ordering::Relaxed);
    }
}

/// A sum that the units had a part in is not finite: gradients are scaled less from now on. Returns false, and begins with
/// the first scale again, where they were not scaled at all any more: then the scale was not why.
pub fn lower_scale() -> bool {
    FINITE.store(0, Ordering::Relaxed);
    let is_lower = EXPONENT.fetch_sub(FALL, Ordering::Relaxed) >= FALL;
    if !is_lower {
        EXPONENT.store(FIRST, Ordering::Relaxed);
    }
    is_lower
}

/// What products scale gradients by before they round them.
pub(crate) fn gradient_scale() -> f32 {
    f32::powi(2.0, EXPONENT.load(Ordering::Relaxed))
}

/// The kernel that an adapter's products take, if rows are whole vec4.
pub(crate) fn kernel(adapter: Adapter) -> Option<&'static Kernel> {
    let number = TAKEN.load(Ordering::Relaxed);
    (WITHIN.get() && adapter == Adapter::Gpu && number > 0).then(|| TEXTS[number - 1].1)
}
