//! Flat vectors: packing against the twin, views, and what they cost.

mod common;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annulus_shaders::cpu;
use annulus_shaders::flat::{ALIGNMENT, FlatLayout, FlatVector};
use annulus_shaders::kernel::{PACK, PACK_ANY};
use annulus_shaders::launch::launches;
use burn::tensor::{Device, Tensor};
use common::{SENTINEL, gpu, numbers, run, tensor, values};

/// More than two launches; lengths around the sizes of places and workgroups, odd, prime.
const LENGTHS: [usize; 20] = [
    1, 3, 63, 64, 65, 1023, 1024, 1025, 2, 257, 4096, 10, 5003, 128, 1, 77, 4, 60, 68, 1020,
];

/// Held by tests that launch, so that one can count.
static LAUNCHING: Mutex<()> = Mutex::new(());

/// The GPU, for this test alone.
fn gpu_alone() -> Option<(Device, MutexGuard<'static, ()>)> {
    Some((gpu()?, LAUNCHING.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn parts(device: &Device, missing: &[usize]) -> (Vec<Vec<f32>>, Vec<Option<Tensor<1>>>) {
    let values: Vec<Vec<f32>> = LENGTHS
        .iter()
        .zip(1..)
        .map(|(len, seed)| numbers(*len, seed))
        .collect();
    let tensors = values
        .iter()
        .enumerate()
        .map(|(index, values)| (!missing.contains(&index)).then(|| tensor(values, [values.len()], device)));
    let tensors = tensors.collect();
    (values, tensors)
}

#[test]
fn packing_agrees_with_its_twin() {
    let Some((device, _alone)) = gpu_alone() else {
        return;
    };
    let layout = Arc::new(FlatLayout::new(LENGTHS));
    for missing in [&[][..], &[0, 4, 12], &[7, 8, 9, 10, 11, 12, 13]] {
        let (values_of, tensors) = parts(&device, missing);
        let mut expected = vec![SENTINEL; layout.len()];
        let twin = |expected: &mut [f32], scale, accumulate| {
            for (index, place) in layout.places().iter().enumerate() {
                let place_of = &mut expected[place.offset..][..place.padded()];
                let values: &[f32] = if missing.contains(&index) {
                    &[]
                } else {
                    &values_of[index]
                };
                cpu::pack::pack(place_of, values, scale, accumulate);
            }
        };
        twin(&mut expected, 0.5, false);
        let before = launches();
        let mut vector = FlatVector::packed(&layout, &tensors, 0.5);
        // 8 tensors of lengths that four divides, 12 others.
        assert_eq!(launches() - before, 4);
        assert_eq!(values(vector.tensor()), expected, "packed without {missing:?}");
        twin(&mut expected, -3.0, true);
        vector.add(&tensors, -3.0);
        assert_eq!(values(vector.tensor()), expected, "added without {missing:?}");
    }
}

#[test]
fn rows_of_workgroups_pack_one_place_after_the_other() {
    let Some((device, _alone)) = gpu_alone() else {
        return;
    };
    // Places of 1, 5 and 2 workgroups in rows of 3, with one to spare, in a vector that is longer.
    for (kernel, first) in [(&PACK, 12), (&PACK_ANY, 10)] {
        let lengths = [first, 4900, 2048];
        let inputs: Vec<Vec<f32>> = lengths
            .iter()
            .zip(1..)
            .map(|(len, seed)| numbers(*len, seed))
            .collect();
        let mut slices = vec![inputs[0].as_slice(); 7];
        (slices[1], slices[6]) = (&inputs[1], &inputs[2]);
        let mut params = [u32::MAX; 31];
        // First workgroup, length, offset, padded length.
        params[..4].copy_from_slice(&[0, first as u32, 16, 16]);
        params[4..8].copy_from_slice(&[1, 4900, 48, 1232]);
        // Four places of nothing, so that the last slot is used too.
        params[8..24].copy_from_slice(&[6, 0, 0, 0].repeat(4));
        params[24..28].copy_from_slice(&[6, 2048, 1280, 512]);
        params[28..].copy_from_slice(&[2.0f32.to_bits(), 0, 3]);
        let found = run(&device, kernel, &slices, &[4 * 2000], params, [3, 3, 1]).remove(0);
        let mut expected = vec![SENTINEL; 8000];
        cpu::pack::pack(&mut expected[64..128], &inputs[0], 2.0, false);
        cpu::pack::pack(&mut expected[192..192 + 4928], &inputs[1], 2.0, false);
        cpu::pack::pack(&mut expected[5120..5120 + 2048], &inputs[2], 2.0, false);
        assert_eq!(found, expected, "{}", kernel.name);
    }
}

#[test]
fn places_are_spread_and_gathered() {
    let layout = FlatLayout::new(LENGTHS);
    assert!(layout.places().iter().all(|place| place.offset % ALIGNMENT == 0));
    let dense = numbers(layout.dense_len(), 9);
    let vector = layout.spread(&dense);
    assert_eq!(vector.len(), layout.len());
    let mut back = vec![0.0; dense.len()];
    let (front, end) = back.split_at_mut(1 + 3 + 63);
    layout.gather(&vector, [front, end]);
    assert_eq!(back, dense);
    assert_eq!(
        vector.iter().filter(|x| **x != 0.0).count(),
        dense.iter().filter(|x| **x != 0.0).count()
    );
}

#[test]
fn views_read_their_place_without_a_launch_and_see_what_is_added() {
    let Some((device, _alone)) = gpu_alone() else {
        return;
    };
    let layout = Arc::new(FlatLayout::new(LENGTHS));
    let dense = numbers(layout.dense_len(), 3);
    let mut vector = FlatVector::upload(&layout, &dense, &device).unwrap();
    let before = launches();
    let mut rest = dense.as_slice();
    for (index, len) in LENGTHS.into_iter().enumerate() {
        assert_eq!(values(vector.view(index, [1, len])), rest[..len]);
        rest = &rest[len..];
    }
    assert_eq!(launches(), before);
    // Two views of one vector in one kernel of Burn's, and one of ours.
    let (left, right) = (
        vector.view(5, [33, 31]),
        vector.view(7, [5, 205]).slice([0..3, 0..31]),
    );
    let product = values(left.clone().matmul(right.clone().transpose()));
    let copies = [left.clone(), right].map(|view| Tensor::<2>::from_data(view.into_data(), &device));
    let [left_copy, right_copy] = copies;
    assert_eq!(product, values(left_copy.clone().matmul(right_copy.transpose())));
    // Burn must not write to a view in place.
    let doubled = values(left.clone() * 2.0);
    assert_eq!(
        values(vector.tensor())[layout.places()[5].offset],
        doubled[0] / 2.0
    );
    let gradients: Vec<_> = LENGTHS
        .iter()
        .map(|len| Some(Tensor::<1>::ones([*len], &device)))
        .collect();
    vector.add(&gradients, 10.0);
    assert_eq!(values(left), values(left_copy + 10.0));
}
