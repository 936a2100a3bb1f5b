//! Embeddings against their twin and Burn's own, forward and backward.

use crate::cases::layers::{self, TOKENS};
use crate::common::{agree, assert_close, devices, gpu, numbers, slopes, tensor, values, whole};
use annulus_shaders::cpu::embedding::{
    Sizes, TableRows, UnknownId, embedding as twin, position_gradient, table_gradient,
};
use annulus_shaders::nn::{Embedding, EmbeddingConfig};
use annulus_shaders::ops::embedding::embedding;
use burn::module::Param;
use burn::tensor::{Device, Tensor, module};

/// Ids with many of one kind and some of none.
fn ids(count: usize, vocabulary: usize) -> Vec<i32> {
    let id = |x: f32| (x.max(0.0) * vocabulary as f32) as i32 % vocabulary as i32;
    numbers(count, 1).into_iter().map(id).collect()
}

/// A table that has all its rows.
fn whole_table<T>(table: &[T], rows: usize) -> (&[T], TableRows) {
    (table, TableRows { first: 0, of: rows })
}

#[test]
fn rows_agree_with_the_twin() {
    for device in devices() {
        for [batch, tokens, vocabulary, width] in TOKENS {
            let ids = ids(batch * tokens, vocabulary);
            let (table, positions) = (numbers(vocabulary * width, 2), numbers((tokens + 3) * width, 3));
            for positions in [None, Some(&positions)] {
                let sizes = Sizes {
                    width,
                    period: tokens,
                };
                let expected = twin(
                    &ids,
                    whole_table(&table, vocabulary),
                    positions.map(Vec::as_slice),
                    sizes,
                )
                .unwrap();
                let found = embedding(
                    whole(&ids, [batch, tokens], &device),
                    tensor(&table, [vocabulary, width], &device),
                    positions.map(|positions| tensor(positions, [tokens + 3, width], &device)),
                );
                assert_eq!(found.dims(), [batch, tokens, width]);
                assert_eq!(values(found), expected, "{batch} {tokens} {vocabulary} {width}");
            }
        }
    }
}

#[test]
fn kernels_agree_with_their_twins() {
    agree(layers::embeddings);
}

#[test]
fn gradients_agree_with_the_twin_and_burns() {
    for device in devices() {
        let device = device.autodiff();
        for [batch, tokens, vocabulary, width] in TOKENS {
            let what = format!("{batch} {tokens} {vocabulary} {width}");
            let ids = ids(batch * tokens, vocabulary);
            let table = tensor(&numbers(vocabulary * width, 2), [vocabulary, width], &device).require_grad();
            let rows = tokens + 3;
            let positions = tensor(&numbers(rows * width, 3), [rows, width], &device).require_grad();
            let upstream = numbers(batch * tokens * width, 4);
            let weights = tensor(&upstream, [batch, tokens, width], &device);
            let batch_ids = || whole(&ids, [batch, tokens], &device);
            let ours = embedding(batch_ids(), table.clone(), Some(positions.clone()));
            let burns = module::embedding(table.clone(), batch_ids())
                + positions.clone().narrow(0, 0, tokens).unsqueeze();
            assert_close(&what, &values(burns.clone()), &values(ours.clone()), 1e-6);
            let [ours, burns] = [ours, burns].map(|out| (out * weights.clone()).sum().backward());
            let to_table = values(table.grad(&ours).unwrap());
            let to_positions = values(positions.grad(&ours).unwrap());
            assert_eq!(
                to_table,
                table_gradient(&ids, &upstream, 0..vocabulary, width),
                "{what}"
            );
            let sizes = Sizes {
                width,
                period: tokens,
            };
            assert_eq!(to_positions, position_gradient(&upstream, rows, sizes), "{what}");
            assert_close(&what, &values(table.grad(&burns).unwrap()), &to_table, 1e-5);
            assert_close(
                &what,
                &values(positions.grad(&burns).unwrap()),
                &to_positions,
                1e-5,
            );

            let gradients = (embedding(batch_ids(), table.clone(), None) * weights)
                .sum()
                .backward();
            assert_eq!(values(table.grad(&gradients).unwrap()), to_table, "{what}");
        }
    }
}

/// A layer whose table lies in parts does what one with the whole table does, to the bit: a row is in one part.
#[test]
fn parts_of_a_table_agree_with_the_whole_one() {
    for device in devices() {
        let device = device.autodiff();
        let [batch, tokens, vocabulary, width] = [3, 70, 200, 12];
        let config = EmbeddingConfig::new(vocabulary, width);
        let mut one = config.init(&device);
        let mut parts = config.with_largest_part(130 * width).init(&device);
        let rows: Vec<usize> = parts.rest.iter().map(|part| part.dims()[0]).collect();
        assert_eq!((parts.weight.dims()[0], &rows[..]), (128, &[72][..]));
        let table = numbers(vocabulary * width, 2);
        let leaf = |rows: std::ops::Range<usize>| {
            let numbers = &table[rows.start * width..rows.end * width];
            Param::from_tensor(tensor(numbers, [rows.len(), width], &device).require_grad())
        };
        (one.weight, parts.weight) = (leaf(0..200), leaf(0..128));
        parts.rest = vec![leaf(128..200)];
        let positions = EmbeddingConfig::new(tokens, width).init(&device);
        let upstream = numbers(batch * tokens * width, 4);
        let run = |layer: &Embedding| {
            let ids = whole(&ids(batch * tokens, vocabulary), [batch, tokens], &device);
            let out = layer.forward_at(ids, &positions);
            let weights = tensor(&upstream, [batch, tokens, width], &device);
            let gradients = (out.clone() * weights).sum().backward();
            let parts = std::iter::once(&layer.weight).chain(&layer.rest);
            let parts = parts.flat_map(|part| values(part.grad(&gradients).unwrap()));
            let scores = layer.scores(tensor(&numbers(5 * width, 6), [5, width], &device));
            [values(out), parts.collect(), values(scores)]
        };
        assert_eq!(run(&parts), run(&one));
    }
}

#[test]
fn gradients_of_the_twin_are_slopes() {
    let [tokens, vocabulary, width] = [3, 4, 2];
    let doubles = |count, seed| -> Vec<f64> { numbers(count, seed).iter().map(|x| f64::from(*x)).collect() };
    let (table, positions) = (doubles(vocabulary * width, 2), doubles(4 * width, 3));
    let (ids, upstream) = ([2, 0, 2, 3, 2, 0], doubles(6 * width, 4));
    let sizes = Sizes {
        width,
        period: tokens,
    };
    let loss = |table: &[f64], positions: &[f64]| -> f64 {
        let out = twin(&ids, whole_table(table, vocabulary), Some(positions), sizes).unwrap();
        out.iter().zip(&upstream).map(|(x, g)| x * g).sum()
    };
    let floats = |xs: Vec<f64>| -> Vec<f32> { xs.iter().map(|x| *x as f32).collect() };
    let found = floats(table_gradient(&ids, &upstream, 0..vocabulary, width));
    assert_close(
        "table",
        &slopes(&table, |moved| loss(moved, &positions)),
        &found,
        1e-6,
    );
    let found = floats(position_gradient(&upstream, 4, sizes));
    assert_close(
        "positions",
        &slopes(&positions, |moved| loss(&table, moved)),
        &found,
        1e-6,
    );
}

#[test]
fn an_id_that_is_no_row_is_loud_on_a_gpu_and_harmless_to_other_tokens() {
    let Some(device) = gpu() else { return };
    let device = device.autodiff();
    for (width, id) in [(4, 5), (4, -1), (3, i32::MAX), (3, i32::MIN)] {
        let table: Tensor<2> = tensor(&numbers(5 * width, 1), [5, width], &device).require_grad();
        let out = embedding(whole(&[4, id, 0], [1, 3], &device), table.clone(), None);
        let rows: Vec<bool> = values(out.clone())
            .chunks(width)
            .map(|row| row.iter().all(|x| x.is_nan()))
            .collect();
        assert_eq!(rows, [false, true, false]);
        let gradient = values(table.grad(&out.sum().backward()).unwrap());
        let mut expected = vec![0.0; 5 * width];
        expected[..width].fill(1.0);
        expected[4 * width..].fill(1.0);
        assert_eq!(gradient, expected);
    }
}

#[test]
#[should_panic(expected = "id 5 of token 1 is none of 5 rows")]
fn an_id_that_is_no_row_is_an_error_on_the_cpu() {
    let unknown = twin(
        &[-1],
        whole_table(&[0.0f32; 4], 2),
        None,
        Sizes { width: 2, period: 1 },
    )
    .unwrap_err();
    assert_eq!(
        unknown,
        UnknownId {
            token: 0,
            id: -1,
            vocabulary: 2
        }
    );
    let device = Device::flex();
    let _ = embedding(
        whole(&[4, 5], [1, 2], &device),
        Tensor::zeros([5, 2], &device),
        None,
    );
}

#[test]
#[should_panic(expected = "4 tokens, but only 3 positions")]
fn more_tokens_than_positions_are_refused() {
    let device = Device::flex();
    let positions = Some(Tensor::zeros([3, 2], &device));
    let _ = embedding(
        whole(&[0; 4], [1, 4], &device),
        Tensor::zeros([5, 2], &device),
        positions,
    );
}
