//! State files: written, read, and damaged.

use super::*;
use crate::testing::{Run, Scratch};
use annulus_core::optim::Moments;
use proptest::prelude::*;
use safetensors::SafeTensors;
use std::fs;

fn bytes(run: &Run) -> Vec<u8> {
    let label = Label {
        head: run.head.clone(),
        digest: run.state.digest(),
    };
    let mut bytes = checkpoint_header(&run.manifest, &label, &run.state).unwrap();
    write_vectors(&mut bytes, &run.state).unwrap();
    bytes
}

fn trained() -> Run {
    trained_with(Kind::F32)
}

fn trained_with(moments: Moments) -> Run {
    let mut run = Run::new();
    run.manifest.moments = moments;
    run.state = State::new(run.state.params, &run.manifest);
    run.round();
    run.round();
    run
}

#[test]
fn the_safetensors_library_reads_it_with_names_and_shapes() {
    let run = trained();
    let bytes = bytes(&run);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), 3 * run.manifest.layout.tensors.len());
    let slot = |slot: usize| run.state.slots[slot].floats(0..run.manifest.layout.len);
    for spec in &run.manifest.layout.tensors {
        for (name, vector) in [
            (spec.name.clone(), &run.state.params[..]),
            (format!("optimizer.0.{}", spec.name), slot(0)),
            (format!("optimizer.1.{}", spec.name), slot(1)),
        ] {
            let tensor = file.tensor(&name).unwrap();
            assert_eq!(tensor.shape(), spec.shape);
            let expected: &[u8] = bytemuck::cast_slice(&vector[spec.offset..spec.offset + spec.len()]);
            assert_eq!(tensor.data(), expected);
        }
    }
    let (size, _) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(size % 8, 0);
}

#[test]
fn it_is_read_back_bit_by_bit_also_where_values_are_odd() {
    let mut run = trained();
    run.state.params[..4].copy_from_slice(&[
        f32::from_bits(0x7fc0_1234),
        -0.0,
        f32::INFINITY,
        f32::from_bits(1),
    ]);
    let scratch = Scratch::new();
    let path = scratch.0.join("x.safetensors");
    fs::write(&path, bytes(&run)).unwrap();
    let (label, state) = read(&path, &run.manifest).unwrap();
    assert_eq!(
        label,
        Label {
            head: run.head.clone(),
            digest: run.state.digest()
        }
    );
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&state.params), bits(&run.state.params));
    assert_eq!(state.slots, run.state.slots);
}

#[test]
fn codes_and_scales_are_read_back_and_have_names_too() {
    let run = trained_with(Moments::EightBit);
    let (bytes, len) = (bytes(&run), run.manifest.layout.len);
    let scratch = Scratch::new();
    let path = scratch.0.join("x.safetensors");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&path, &run.manifest).unwrap().1, run.state);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), 3 * run.manifest.layout.tensors.len() + 2);
    let scales = file.tensor("optimizer.scales.1").unwrap();
    assert_eq!((scales.dtype(), scales.shape()), (Dtype::F32, &[1][..]));
    let spec = &run.manifest.layout.tensors[1];
    let codes = file.tensor(&format!("optimizer.1.{}", spec.name)).unwrap();
    assert_eq!((codes.dtype(), codes.shape()), (Dtype::U8, &spec.shape[..]));
    let expected = &run.state.slots[1].codes(0..len)[spec.offset..spec.offset + spec.len()];
    assert_eq!(codes.data(), expected);
    let plain = trained();
    assert!(matches!(
        read(&path, &plain.manifest),
        Err(StateFileError::OtherRun { .. })
    ));
}

#[test]
fn every_cut_and_every_changed_byte_is_refused() {
    let run = trained();
    let whole = bytes(&run);
    let scratch = Scratch::new();
    let path = scratch.0.join("x.safetensors");
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(read(&path, &run.manifest).is_err(), "cut to {len} bytes");
    }
    let mut unseen = Vec::new();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        if let Ok((label, state)) = read(&path, &run.manifest) {
            assert_eq!(
                (&label.head, label.digest, &state),
                (&run.head, run.state.digest(), &run.state)
            );
            unseen.push(at);
        }
    }
    // Only text for people may change.
    let text = b"\"task\":\"test\"";
    let start = whole
        .windows(text.len())
        .position(|window| window == text)
        .unwrap();
    assert!(
        unseen.iter().all(|at| (start..start + text.len()).contains(at)),
        "{unseen:?}"
    );
}

#[test]
fn another_version_is_refused_by_name() {
    let run = trained();
    let scratch = Scratch::new();
    let path = scratch.0.join("x.safetensors");
    let mut bytes = bytes(&run);
    let text = format!("{FORMAT}{VERSION}");
    let at = bytes
        .windows(text.len())
        .position(|window| window == text.as_bytes());
    let other = VERSION / 10 * 10 + (VERSION + 1) % 10;
    bytes[at.unwrap() + text.len() - 1] = b'0' + other % 10;
    fs::write(&path, bytes).unwrap();
    let error = read(&path, &run.manifest).unwrap_err().to_string();
    assert!(
        error.contains(&format!("version {other}")) && error.contains(&format!("reads version {VERSION}")),
        "{error}"
    );
}

#[test]
fn another_run_is_told_from_damage() {
    let run = trained();
    let scratch = Scratch::new();
    let path = scratch.0.join("x.safetensors");
    fs::write(&path, bytes(&run)).unwrap();
    let mut other = run.manifest.clone();
    other.seed += 1;
    assert!(matches!(
        read(&path, &other),
        Err(StateFileError::OtherRun { .. })
    ));
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let mut run = trained();
    run.manifest.layout.tensors[1].name = "optimizer.0.a.weight".into();
    let label = Label {
        head: run.head.clone(),
        digest: run.state.digest(),
    };
    let error = checkpoint_header(&run.manifest, &label, &run.state).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("two tensors are called optimizer.0.a.weight"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn hostile_headers_never_panic(size in prop::option::of(any::<u64>()), json in ".{0,300}", at in 0usize..200, cut in any::<prop::sample::Index>()) {
        let run = trained();
        let scratch = Scratch::new();
        let path = scratch.0.join("x.safetensors");
        let mut whole = bytes(&run);
        let at = 8 + at;
        let end = (at + cut.index(200)).min(whole.len());
        whole.splice(at..end, json.bytes());
        if let Some(size) = size {
            whole[..8].copy_from_slice(&size.to_le_bytes());
        }
        fs::write(&path, &whole).unwrap();
        if let Ok((_, state)) = read(&path, &run.manifest) {
            prop_assert_eq!(state, run.state);
        }
    }
}
