//! Frames to peers of a run: no panic, and little kept.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    annulus_core::sim::fuzz::feed(input).expect("little is kept");
});
