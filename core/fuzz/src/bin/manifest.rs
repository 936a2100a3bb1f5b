//! Manifests of strangers: what is taken is written back as it was.
#![no_main]

use annulus_core::Manifest;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(manifest) = Manifest::decode(input) {
        let again = Manifest::decode(&manifest.encode()).expect("what was taken once");
        assert_eq!(manifest.run_id(), again.run_id());
    }
});
