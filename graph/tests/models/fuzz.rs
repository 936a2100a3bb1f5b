//! Spoilt files: reading and running them ends, with or without an error, and takes no more memory than the limits say.

use crate::common::{fixture, own_fixtures};
use annulus_graph::{Graph, GraphError, HostTensor, PassOptions, ReadOptions, read_tensors};
use burn::tensor::Device;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

thread_local! {
    /// The largest allocation of this thread so far.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which remembers each thread's largest allocation.
struct Watched;

#[global_allocator]
static WATCHED: Watched = Watched;

// SAFETY: all work is the system allocator's. Noting a size neither allocates nor unwinds: the cell is a constant, has no
// destructor, and a thread that is past its locals is not noted.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc`, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number generators; 2014).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// The same bytes but for one to three changes.
    fn spoil(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(3) {
            let (at, other) = (self.below(bytes.len()), self.below(bytes.len()));
            match self.below(8) {
                _ if bytes.is_empty() => {}
                0 | 1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at] = self.bits() as u8,
                3 => bytes[at] = bytes[at].wrapping_add(1),
                4 => bytes.swap(at, other),
                5 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                6 => bytes.truncate(at),
                _ => {
                    let part = bytes[at.min(other)..at.max(other)].to_vec();
                    bytes.splice(other..other, part);
                }
            }
        }
        bytes
    }
}

/// A model without the numbers of its parameters, where a change does nothing, and a batch for it.
struct Target {
    name: String,
    file: Vec<u8>,
    /// Where the structure lies; changes fall there.
    structure: Vec<usize>,
    inputs: Vec<(String, HostTensor)>,
}

impl Target {
    fn new(name: &str, file: Vec<u8>, reference: &[u8]) -> Self {
        let inputs = read_tensors(reference).unwrap().into_iter();
        let inputs =
            inputs.filter_map(|(name, value)| Some((name.strip_prefix("input.")?.to_owned(), value)));
        // Names are text; numbers of parameters are hardly ever.
        let near_text = |at: &usize| {
            let near = &file[at.saturating_sub(6)..(at + 6).min(file.len())];
            near.iter().filter(|byte| byte.is_ascii_lowercase()).count() >= 3
        };
        let structure = (0..file.len()).filter(near_text).collect();
        let (name, inputs) = (name.to_owned(), inputs.collect());
        Self {
            name,
            file,
            structure,
            inputs,
        }
    }

    /// Changes a byte of the structure, or anything.
    fn spoil(&self, random: &mut Random) -> Vec<u8> {
        if random.below(3) == 0 {
            return random.spoil(&self.file);
        }
        let mut file = self.file.clone();
        for _ in 0..=random.below(3) {
            let at = self.structure[random.below(self.structure.len())];
            file[at] = match random.below(4) {
                0 => file[at] ^ 1 << random.below(8),
                1 => file[at].wrapping_add(1),
                2 => file[self.structure[random.below(self.structure.len())]],
                _ => random.bits() as u8,
            };
        }
        file
    }
}

/// Most bytes in one allocation: 2^20 elements of 8 bytes, some of which operations make room for twice.
const MOST_BYTES: usize = 1 << 25;

fn fuzz(targets: &[Target], seed: u64, time: Duration) {
    let mut options = ReadOptions::default();
    options.limits.elements = 1 << 20;
    options.limits.host_elements = 1 << 16;
    options.limits.pass_elements = 1 << 22;
    let device = Device::flex().autodiff();
    let (mut random, began, mut times, mut ran) = (Random(seed), Instant::now(), 0, 0);
    while began.elapsed() < time {
        let target = &targets[random.below(targets.len())];
        let file = target.spoil(&mut random);
        options.as_is = random.below(4) == 0;
        times += 1;
        LARGEST.set(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&file, &target.inputs, &options, &device)));
        let Ok(finished) = outcome else {
            let kept = std::env::temp_dir().join(format!("spoilt-{seed}-{times}.onnx"));
            std::fs::write(&kept, &file).unwrap();
            panic!("{} panics; the file is {}", target.name, kept.display());
        };
        ran += usize::from(finished);
        let largest = LARGEST.get();
        assert!(
            largest <= MOST_BYTES,
            "{}, try {times}: {largest} bytes at once",
            target.name
        );
    }
    println!("seed {seed}: {times} spoilt files, of which {ran} ran");
    assert!(ran > 0 && ran < times);
}

/// Whether the file could be read and run.
fn run(file: &[u8], inputs: &[(String, HostTensor)], options: &ReadOptions, device: &Device) -> bool {
    let Ok(mut graph) = Graph::read(file, None, options) else {
        return false;
    };
    let options = PassOptions {
        training: true,
        dropout: Some(1),
    };
    let pass = |graph: &Graph| {
        let output = graph.run(&graph.model(device)?, inputs, device, options)?;
        output.loss.backward();
        Ok::<_, GraphError>(())
    };
    let ran = pass(&graph).is_ok();
    if ran && graph.fuse(inputs).is_ok() {
        // An error will do; a panic will not.
        let _ = pass(&graph);
    }
    ran
}

#[test]
fn spoilt_models_are_no_more_than_an_error() {
    let names = ["mlp", "tabular", "cnn"];
    let targets = names.map(|name| {
        let reference = fixture(&format!("{name}.safetensors"));
        Target::new(name, fixture(&format!("{name}.annulus.onnx")), &reference)
    });
    fuzz(&targets, 7, Duration::from_secs(4));
}

#[test]
#[ignore = "takes ten minutes"]
fn many_spoilt_models_are_no_more_than_an_error() {
    let folder = crate::common::all_fixtures().unwrap_or_else(own_fixtures);
    let files = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "onnx"))
        .collect();
    files.sort();
    let targets = files.iter().map(|path| {
        let name = path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .replace(".annulus.onnx", "");
        let reference = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
        Target::new(&name, std::fs::read(path).unwrap(), &reference)
    });
    let seed = std::env::var("ANNULUS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    fuzz(
        &targets.collect::<Vec<_>>(),
        seed.unwrap_or(11),
        Duration::from_secs(600),
    );
}
