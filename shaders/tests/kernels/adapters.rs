//! Operations with the kernels for hardware, on whatever adapter there is.

use crate::common::{again, gpu};
use annulus_shaders::launch::{ADAPTER_VARIABLE, Adapter, adapter_of};

/// Tests that compare operations with Burn's own and with slopes, not kernels with their twins.
const OPERATIONS: [&str; 7] = [
    "agree_with_burns",
    "separate_attention_agrees",
    "are_slopes",
    "gradient",
    "optim::",
    "flat::",
    "needs::",
];

#[test]
fn operations_agree_with_the_kernels_for_hardware() {
    let Some(device) = gpu() else { return };
    if std::env::var_os(ADAPTER_VARIABLE).is_some() {
        assert_eq!(adapter_of(&device), Some(Adapter::Gpu));
        return;
    }
    let said = again(
        &[&["adapters::"][..], &OPERATIONS].concat(),
        [(ADAPTER_VARIABLE, "gpu")],
    );
    assert!(!said.contains(" 0 passed"), "{said}");
}
