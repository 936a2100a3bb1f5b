//! Flat vectors: packing against the twin, views, and what they cost.

use std::sync::Arc;

use crate::cases::bench::SENTINEL;
use crate::cases::vectors;
use crate::common::{agree, alone, gpu, launches, numbers, tensor, values};
use annulus_shaders::cpu;
use annulus_shaders::flat::{ALIGNMENT, FlatLayout, FlatVector};
use annulus_shaders::split::{self, SplitLayout, SplitVector, TooLong};
use burn::tensor::{Device, Tensor};

/// More than two launches; lengths around the sizes of places and workgroups, odd, prime.
const LENGTHS: [usize; 20] = [
    1, 3, 63, 64, 65, 1023, 1024, 1025, 2, 257, 4096, 10, 5003, 128, 1, 77, 4, 60, 68, 1020,
];

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
    if !alone("flat::packing_agrees_with_its_twin") {
        return;
    }
    let Some(device) = gpu() else { return };
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
    agree(vectors::packs);
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
    if !alone("flat::views_read_their_place_without_a_launch_and_see_what_is_added") {
        return;
    }
    let Some(device) = gpu() else { return };
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

#[test]
fn parts_are_as_few_as_fit_and_hold_whole_tensors() {
    let lengths = |layout: &SplitLayout| -> Vec<Vec<usize>> {
        let of = |part: &Arc<FlatLayout>| part.places().iter().map(|place| place.len).collect();
        layout.parts().iter().map(of).collect()
    };
    let split = |lengths: &[usize], largest| SplitLayout::new(lengths.iter().copied(), largest);
    assert_eq!(lengths(&split(&[], 64).unwrap()), [[0usize; 0]]);
    assert_eq!(lengths(&split(&[64, 63, 1], 192).unwrap()), [[64, 63, 1]]);
    assert_eq!(
        lengths(&split(&[64, 65, 1, 128, 64], 192).unwrap()),
        [vec![64, 65], vec![1, 128], vec![64]]
    );
    assert_eq!(lengths(&split(&[64, 64], 64).unwrap()), [[64], [64]]);
    let too_long = TooLong {
        index: 1,
        len: 65,
        largest: 127,
    };
    assert_eq!(split(&[64, 65], 127), Err(too_long));
}

#[test]
fn a_vector_in_parts_holds_what_one_in_one_part_holds() {
    let Some(device) = gpu() else { return };
    let whole = Arc::new(FlatLayout::new(LENGTHS));
    // 5003 numbers are the longest; the first part holds nothing that is not missing.
    let split = Arc::new(SplitLayout::new(LENGTHS, 5056).unwrap());
    assert!(split.parts().len() > 3);
    assert!(split.parts().iter().all(|part| part.len() <= 5056));
    let missing: Vec<usize> = (0..split.parts()[0].places().len()).chain([15]).collect();
    let (_, some) = parts(&device, &missing);
    let (_, all) = parts(&device, &[]);
    let mut expected = FlatVector::packed(&whole, &some, 0.5);
    let mut found = SplitVector::packed(&split, &some, 0.5);
    let same = |expected: &FlatVector, found: &SplitVector| {
        let found: Vec<f32> = found
            .parts()
            .iter()
            .flat_map(|part| values(part.tensor()))
            .collect();
        assert_eq!(found, values(expected.tensor()));
    };
    same(&expected, &found);
    for (tensors, scale) in [(&some, 2.0), (&all, -3.0), (&vec![None; LENGTHS.len()], 1.0)] {
        expected.add(tensors, scale);
        found.add(tensors, scale);
        same(&expected, &found);
    }
    let dense = numbers(split.dense_len(), 4);
    let uploaded = SplitVector::upload(&split, &dense, &device).unwrap();
    same(&FlatVector::upload(&whole, &dense, &device).unwrap(), &uploaded);
    let mut rest = dense.as_slice();
    for (index, len) in LENGTHS.into_iter().enumerate() {
        assert_eq!(
            values(uploaded.view(index, [len, 1])),
            rest[..len],
            "view {index}"
        );
        rest = &rest[len..];
    }
}

#[test]
fn more_than_a_binding_holds_goes_to_the_gpu_and_back() {
    let Some(device) = gpu() else { return };
    let largest = split::largest(&device).unwrap();
    if largest > 64 << 20 {
        println!("skipped: a binding of this adapter holds {largest} numbers, too many for a test");
        return;
    }
    // Each fits, but not all of them.
    let lengths = [largest / 2, largest / 4, largest / 2 + 3];
    let layout = Arc::new(SplitLayout::new(lengths, largest).unwrap());
    assert_eq!(layout.parts().len(), 2);
    let dense: Vec<f32> = (0..layout.dense_len()).map(|at| (at % 8191) as f32).collect();
    let vector = SplitVector::upload(&layout, &dense, &device).unwrap();
    let views = lengths
        .iter()
        .enumerate()
        .map(|(index, len)| Some(vector.view(index, [*len])));
    let views: Vec<Option<Tensor<1>>> = views.collect();
    let sum = SplitVector::packed(&layout, &views, 2.0);
    let mut rest = dense.as_slice();
    for part in sum.parts() {
        let mut found = vec![0.0; part.layout().dense_len()];
        part.layout().gather(&values(part.tensor()), [&mut found]);
        let (expected, behind) = rest.split_at(found.len());
        assert!(found.iter().zip(expected).all(|(f, e)| *f == 2.0 * e));
        rest = behind;
    }
}
