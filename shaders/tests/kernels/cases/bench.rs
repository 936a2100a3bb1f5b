//! Runs kernels on a device and keeps how far off they are. It must not know what they compute.

use annulus_shaders::kernel::Kernel;
use annulus_shaders::launch::{grid, launch, raw};
use burn::backend::wgpu::CubeTensor;
use burn::tensor::{Device, Tensor, TensorData};
use bytemuck::Pod;
use std::collections::BTreeMap;

/// What a kernel must overwrite and nothing else may touch.
pub const SENTINEL: f32 = -12345.0;

/// What follows each buffer: as far as a kernel that overlooks its end would soon get.
const BEHIND: usize = 1024;

/// What became of a kernel or an operation.
#[derive(Default)]
pub struct Row {
    /// Comparisons with the twin.
    pub cases: u32,
    /// Largest distance from the twin, in shares of the largest magnitude or of 1.
    pub error: f32,
    /// The first that was too far off.
    pub problem: Option<String>,
}

/// A launch that was only noted.
pub struct Launch {
    pub kernel: &'static Kernel,
    pub inputs: Vec<Vec<f32>>,
    /// Lengths.
    pub outputs: Vec<usize>,
    pub params: Vec<u8>,
    pub groups: [u32; 3],
    /// What a case compares with: its name, what the twin makes, and how far off a number may be.
    pub expected: Option<(String, Vec<Vec<f32>>, f32)>,
}

/// What becomes of launches.
enum Machine {
    Device(Device),
    Notes(Vec<Launch>),
}

/// A device and what became of what ran on it.
pub struct Bench {
    machine: Machine,
    /// By name.
    pub rows: BTreeMap<String, Row>,
}

impl Bench {
    /// Nothing has run yet.
    pub fn new(device: Device) -> Self {
        let (machine, rows) = (Machine::Device(device), BTreeMap::new());
        Self { machine, rows }
    }

    /// Runs nothing, but notes what it is told to run. Nothing that it has of a comparison means anything.
    pub fn noting() -> Self {
        let (machine, rows) = (Machine::Notes(Vec::new()), BTreeMap::new());
        Self { machine, rows }
    }

    /// What was noted.
    pub fn notes(self) -> Vec<Launch> {
        match self.machine {
            Machine::Notes(notes) => notes,
            Machine::Device(_) => Vec::new(),
        }
    }

    /// Runs a kernel on slices. Behind each input there are numbers that spoil whatever they touch; outputs are filled
    /// with [`SENTINEL`] before, and so is what follows them, which must stay.
    pub async fn run<P: Pod>(
        &mut self,
        kernel: &'static Kernel,
        inputs: &[&[f32]],
        outputs: &[usize],
        params: P,
        groups: [u32; 3],
    ) -> Vec<Vec<f32>> {
        let device = match &mut self.machine {
            Machine::Device(device) => device.clone(),
            Machine::Notes(notes) => {
                notes.push(Launch {
                    kernel,
                    inputs: inputs.iter().map(|values| values.to_vec()).collect(),
                    outputs: outputs.to_vec(),
                    params: bytemuck::bytes_of(&params).to_vec(),
                    groups,
                    expected: None,
                });
                return outputs.iter().map(|length| vec![SENTINEL; *length]).collect();
            }
        };
        let upload = |values: &[f32], behind: f32| {
            let values = [values, &[behind; BEHIND]].concat();
            tensor(&values, [values.len()], &device)
        };
        let on_gpu = |tensor: Tensor<1>| raw(tensor).expect("a tensor on a GPU");
        let inputs = inputs.iter().map(|values| on_gpu(upload(values, f32::NAN)));
        let inputs: Vec<CubeTensor> = inputs.collect();
        let lengths = outputs;
        let outputs = lengths
            .iter()
            .map(|length| upload(&vec![SENTINEL; *length], SENTINEL));
        let outputs: Vec<Tensor<1>> = outputs.collect();
        let buffers: Vec<CubeTensor> = outputs.iter().cloned().map(on_gpu).collect();
        launch(
            kernel,
            &inputs.iter().collect::<Vec<_>>(),
            &buffers.iter().collect::<Vec<_>>(),
            params,
            groups,
        );
        let mut found = Vec::new();
        for (output, length) in outputs.into_iter().zip(lengths) {
            let mut output = values(output).await;
            let behind = output.split_off(*length);
            let untouched = behind.iter().all(|x| *x == SENTINEL);
            self.hold(kernel.name, "written behind an output's end", untouched);
            found.push(output);
        }
        found
    }

    /// Runs a kernel and compares all that it writes.
    #[expect(clippy::too_many_arguments, reason = "a case is that much")]
    pub async fn case<P: Pod>(
        &mut self,
        kernel: &'static Kernel,
        what: &str,
        inputs: &[&[f32]],
        expected: &[&[f32]],
        tolerance: f32,
        params: P,
        groups: [u32; 3],
    ) -> Vec<Vec<f32>> {
        let lengths: Vec<usize> = expected.iter().map(|values| values.len()).collect();
        let found = self.run(kernel, inputs, &lengths, params, groups).await;
        if let Machine::Notes(notes) = &mut self.machine {
            let launch = notes.last_mut().expect("it was just noted");
            // A launch that takes the numbers of an earlier one does not have them.
            if !launch.inputs.iter().any(|values| values.contains(&SENTINEL)) {
                let expected = expected.iter().map(|values| values.to_vec()).collect();
                launch.expected = Some((what.to_owned(), expected, tolerance));
            }
            return found;
        }
        for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let what = format!("{what}: output {number}");
            self.close(kernel.name, &what, expected, found, tolerance);
        }
        found
    }

    /// Compares numbers; what has the same bits, or is no number in both, is the same.
    pub fn close(&mut self, name: &str, what: &str, expected: &[f32], found: &[f32], tolerance: f32) {
        let finite = expected.iter().filter(|x| x.is_finite());
        let scale = finite.fold(1.0f32, |max, x| max.max(x.abs()));
        let row = self.rows.entry(name.to_owned()).or_default();
        row.cases += 1;
        let mut problem = (expected.len() != found.len())
            .then(|| format!("{what}: {} numbers, not {}", found.len(), expected.len()));
        for (at, (e, f)) in expected.iter().zip(found).enumerate() {
            if e.to_bits() == f.to_bits() || e.is_nan() && f.is_nan() {
                continue;
            }
            let error = (e - f).abs() / scale;
            let error = if error.is_nan() { f32::INFINITY } else { error };
            row.error = row.error.max(error);
            if error > tolerance && problem.is_none() {
                problem = Some(format!(
                    "{what}: number {at} of {} is {f}, not {e}",
                    expected.len()
                ));
            }
        }
        row.problem = row.problem.take().or(problem);
    }

    /// Keeps a problem, unless all is well.
    pub fn hold(&mut self, name: &str, problem: &str, well: bool) {
        let row = self.rows.entry(name.to_owned()).or_default();
        if !well {
            row.problem.get_or_insert_with(|| problem.to_owned());
        }
    }
}

/// Enough workgroups for `count` of them, some more, and in several rows, as kernels must expect.
pub fn spare(count: usize) -> [u32; 3] {
    if count > 100_000 {
        return grid(count + 3);
    }
    [count.div_ceil(2) as u32, 3, 1]
}

/// The same sequence of numbers in [-1, 1) each time.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// That sequence in [-5, 5).
pub fn scaled(count: usize, seed: u64) -> Vec<f32> {
    numbers(count, seed).iter().map(|x| 5.0 * x).collect()
}

/// A tensor on `device`.
pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// A tensor's numbers, without blocking: nothing may in a browser.
pub async fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.into_data_async().await;
    data.expect("the device answers")
        .try_to_vec::<f32>()
        .expect("numbers of 32 bits")
}

/// Whole numbers as a buffer of floats holds them.
pub fn bits(numbers: &[i32]) -> Vec<f32> {
    numbers.iter().map(|x| f32::from_bits(*x as u32)).collect()
}
