//! Products by matrix units, where the device has them.

use crate::cases::products::SHAPES;
use crate::common::{ALONE, again, assert_close, gpu, numbers, tensor, values};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::gemm::{Matrix, add_bias, column_sums, product};
use annulus_shaders::cpu::halve::{pack, unpack};
use annulus_shaders::kernel::MATRIX_KERNELS;
use annulus_shaders::launch::{ADAPTER_VARIABLE, contiguous, from_raw, raw};
use annulus_shaders::matrices::{self, Within};
use annulus_shaders::ops::gemm::{Epilogue, Operand, gemm};
use annulus_shaders::ops::linear::{WeightLayout, linear};
use annulus_shaders::trial;
use burn::backend::wgpu::CubeTensor;
use burn::tensor::{Device, Tensor};

/// Runs a test in a process of its own, since the units are taken for a whole process, with the kernels for hardware. A
/// device there, and what lets products take its units.
fn with_units(test: &str) -> Option<(Device, Within)> {
    let device = gpu()?;
    if std::env::var_os(ALONE).is_none() {
        let environment = [(ALONE, "1"), (ADAPTER_VARIABLE, "gpu")];
        let said = again(&[test, "--exact", "--nocapture"], environment);
        assert!(said.contains("1 passed"), "{test}, alone:\n{said}");
        said.lines()
            .filter(|line| line.starts_with("skipped:"))
            .for_each(|line| println!("{line}"));
        return None;
    }
    #[cfg(target_os = "linux")]
    let blocks = crate::offline::matrix_blocks();
    #[cfg(not(target_os = "linux"))]
    let blocks = Vec::new();
    match trial::take_units(&device, &blocks) {
        Ok(()) => Some((device, matrices::within())),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn launches() -> u64 {
    MATRIX_KERNELS.iter().map(|kernel| kernel.launches()).sum()
}

/// Random numbers that halves can hold.
fn halves(count: usize, seed: u64) -> Vec<f32> {
    unpack(&pack(&numbers(count, seed)), count)
}

fn on_device(numbers: &[f32], columns: usize, device: &Device) -> CubeTensor {
    raw(tensor(numbers, [numbers.len() / columns, columns], device)).unwrap()
}

fn read(tensor: CubeTensor, shape: [usize; 2]) -> Vec<f32> {
    values(from_raw::<2>(contiguous(tensor)).reshape(shape))
}

#[test]
fn products_of_halves_are_exact() {
    let Some((device, _units)) = with_units("matrices::products_of_halves_are_exact") else {
        return;
    };
    let fours = |size: usize| size.next_multiple_of(4);
    for [m, n, k] in SHAPES.map(|sizes| sizes.map(fours)) {
        let (a, b) = (halves(m * k, 1), halves(k * n, 2));
        for (a_turned, b_turned) in [(false, false), (false, true), (true, false), (true, true)] {
            let of = |numbers, [rows, columns]: [usize; 2], turned| match turned {
                false => (Matrix::row_major(numbers, columns), columns),
                true => (Matrix::row_major(numbers, rows).transposed(), rows),
            };
            let (x, x_columns) = of(&a, [m, k], a_turned);
            let (y, y_columns) = of(&b, [k, n], b_turned);
            let [on_a, on_b] = [(&a, x_columns), (&b, y_columns)]
                .map(|(numbers, columns)| on_device(numbers, columns, &device));
            let epilogue = Epilogue {
                sums: true,
                ..Epilogue::default()
            };
            let before = launches();
            // The gradient's scale is a power of two, which changes nothing.
            let first = Operand {
                transposed: a_turned,
                is_gradient: true,
                ..Operand::of(&on_a)
            };
            let second = Operand {
                transposed: b_turned,
                ..Operand::of(&on_b)
            };
            let (out, sums) = gemm(first, second, epilogue);
            assert_eq!(launches(), before + 1);
            let what = format!("{m} {n} {k} {a_turned} {b_turned}");
            assert_close(&what, &product([m, n, k], x, y), &read(out, [m, n]), 1e-5);
            let rows: Vec<f32> = (0..k * n)
                .map(|at| y.data[at / n * y.row + at % n * y.column])
                .collect();
            assert_close(&what, &column_sums(&rows, n), &read(sums.unwrap(), [1, n]), 1e-5);
        }
    }
}

#[test]
fn terms_are_those_of_other_products() {
    let Some((device, _units)) = with_units("matrices::terms_are_those_of_other_products") else {
        return;
    };
    let [m, n, k] = [61, 68, 12];
    let (a, b) = (halves(m * k, 1), halves(k * n, 2));
    let (bias, extra) = (numbers(n, 3), numbers(m * n, 4));
    let [on_a, on_b, on_bias, on_extra] = [(&a, k), (&b, n), (&bias, n), (&extra, n)]
        .map(|(numbers, columns)| on_device(numbers, columns, &device));
    let run = |epilogue| gemm(Operand::of(&on_a), Operand::of(&on_b), epilogue);
    let sums = product([m, n, k], Matrix::row_major(&a, k), Matrix::row_major(&b, n));
    for activation in [Activation::Identity, Activation::Relu, Activation::Gelu] {
        let (out, side) = run(Epilogue {
            bias: Some(&on_bias),
            activation,
            keep: true,
            add: Some(&on_extra),
            ..Epilogue::default()
        });
        let mut expected = sums.clone();
        add_bias(&mut expected, &bias);
        assert_close("before", &expected, &read(side.unwrap(), [m, n]), 1e-5);
        activation.apply_all(&mut expected);
        expected.iter_mut().zip(&extra).for_each(|(x, e)| *x += e);
        assert_close("after", &expected, &read(out, [m, n]), 1e-5);
        let (out, _) = run(Epilogue {
            slope: Some((activation, &on_extra)),
            ..Epilogue::default()
        });
        let mut expected = sums.clone();
        activation.times_slopes(&mut expected, &extra);
        assert_close("slope", &expected, &read(out, [m, n]), 1e-5);
    }
}

/// Gradients that no half can hold reach the weights all the same; the error is that of halves.
#[test]
fn small_gradients_are_not_lost() {
    let Some((device, _units)) = with_units("matrices::small_gradients_are_not_lost") else {
        return;
    };
    let (device, plain) = (device.autodiff(), Device::flex().autodiff());
    let [rows, inputs, outputs] = [300, 64, 68];
    let (x, w, slope) = (
        numbers(rows * inputs, 1),
        numbers(inputs * outputs, 2),
        numbers(rows * outputs, 3),
    );
    // The least half is 6e-8.
    let slope: Vec<f32> = slope.iter().map(|slope| slope * 1e-8).collect();
    for layout in [WeightLayout::InputsFirst, WeightLayout::OutputsFirst] {
        let shape = match layout {
            WeightLayout::InputsFirst => [inputs, outputs],
            WeightLayout::OutputsFirst => [outputs, inputs],
        };
        let [found, exact] = [&device, &plain].map(|device| {
            let x = tensor(&x, [rows, inputs], device).require_grad();
            let w = tensor(&w, shape, device).require_grad();
            let out = linear(x.clone(), w.clone(), None, None, layout);
            let gradients = (out * tensor(&slope, [rows, outputs], device)).sum().backward();
            [
                values(x.grad(&gradients).unwrap()),
                values(w.grad(&gradients).unwrap()),
            ]
        });
        for (found, exact) in found.iter().zip(&exact) {
            let largest = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scaled = |all: &[f32]| -> Vec<f32> { all.iter().map(|x| x / largest).collect() };
            assert_close(&format!("{layout:?}"), &scaled(exact), &scaled(found), 2e-3);
            assert_ne!(found, exact, "nothing was rounded");
        }
    }
}

#[test]
fn what_is_too_large_for_halves_ends_without_the_units() {
    let Some((device, units)) = with_units("matrices::what_is_too_large_for_halves_ends_without_the_units")
    else {
        return;
    };
    let large = on_device(&[1e5; 16 * 16], 16, &device);
    let product = || {
        read(
            gemm(Operand::of(&large), Operand::of(&large), Epilogue::default()).0,
            [16, 16],
        )
    };
    let is_finite = |found: Vec<f32>| found.iter().all(|x| x.is_finite());
    assert!(!is_finite(product()));
    let mut again = 0;
    while matrices::lower_scale() {
        again += 1;
    }
    assert!((2..10).contains(&again), "{again}");
    matrices::set_aside();
    assert!(is_finite(product()));
    assert!(matrices::take_again());
    assert!(!is_finite(product()));
    drop(units);
    assert!(is_finite(product()));
    let w: Tensor<2> = tensor(&[1.0; 16], [4, 4], &device);
    assert_eq!(
        values(linear(w.clone(), w, None, None, WeightLayout::InputsFirst)),
        [4.0; 16]
    );
}
