//! Looks for races in workgroup memory, without a GPU.
//!
//! naga writes a kernel in Metal's language, which is C++ but for some types and functions; `metal.h` has those. A thread
//! plays each invocation of a workgroup, and ThreadSanitizer finds two that touch a number with no barrier between. The
//! launches are cases of the other tests, so results are compared with the twins too: a kernel that was translated wrongly
//! would prove nothing.

use crate::cases::bench::{Bench, Launch, SENTINEL};
use crate::cases::{attentions, channels, convolutions, layers, products, vectors};
use crate::common::block_on;
use annulus_shaders::kernel::{GEMM_TILED, KERNELS, Kernel};
use naga_metal::back::msl;
use naga_metal::valid::{Capabilities, ValidationFlags, Validator};
use naga_metal::{AddressSpace, Binding, BuiltIn};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cases of each kernel, spread over those that are small enough.
const CASES: usize = 4;

/// A small case has at most so many workgroups, and numbers in its inputs.
const SMALL: (u32, usize) = (18, 64_000);

/// Programs that are compiled and run at a time.
const PROGRAMS: usize = 2;

/// The exit code of a program that has a race.
const RACE: i32 = 66;

/// Barriers of sums of columns, which no case asks of this kernel. Its text is else that of `gemm_tiled`.
const UNNOTICED: [&str; 2] = ["gemm_tiled_halves_without_3", "gemm_tiled_halves_without_4"];

/// Kernels that lack a barrier, one of which at least must be found to race.
const BROKEN: usize = 3;

const BARRIER: &str = "workgroupBarrier();";

const METAL: &str = include_str!("metal.h");

/// A kernel's text, perhaps changed, and what to launch of it.
struct Job<'a> {
    name: String,
    kernel: &'static Kernel,
    text: String,
    launches: &'a [Launch],
}

/// What is wrong with a job, or what its launches wrote, buffer by buffer.
type Outcome = Result<Vec<Vec<Vec<f32>>>, String>;

#[test]
fn invocations_do_not_race_for_workgroup_memory() {
    let Some(folder) = folder("races") else { return };
    let cases = cases();
    let mut jobs: Vec<Job> = cases
        .values()
        .map(|(kernel, launches)| whole(kernel, launches))
        .collect();
    // The proof that a race would be found. ThreadSanitizer may miss one of them.
    let of_tiles = &cases[GEMM_TILED.name].1;
    let broken = (0..BROKEN).map(|number| without_barrier(&GEMM_TILED, number, of_tiles));
    jobs.extend(broken);
    let mut outcomes = run(&folder, &jobs);
    let of_broken = outcomes.split_off(outcomes.len() - BROKEN);
    let is_race = |outcome: &Outcome| matches!(outcome, Err(found) if found.starts_with("race"));
    assert!(
        of_broken.iter().any(is_race),
        "barriers are missing, and no race is found"
    );
    jobs.truncate(outcomes.len());
    let mut bench = Bench::noting();
    for (job, outcome) in jobs.iter().zip(outcomes) {
        match outcome {
            Ok(found) => compare(&mut bench, job, &found),
            Err(problem) => bench.hold(&job.name, &problem, false),
        }
    }
    let problems = bench
        .rows
        .iter()
        .filter_map(|(name, row)| Some((name, row.problem.as_ref()?)));
    let problems: Vec<String> = problems
        .map(|(name, problem)| format!("{name}: {problem}"))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let launches: usize = jobs.iter().map(|job| job.launches.len()).sum();
    println!(
        "no race in {} kernels with workgroup memory, {launches} cases",
        cases.len()
    );
    std::fs::remove_dir_all(folder).unwrap();
}

/// Whether each barrier is needed, and each missing one would be found.
#[test]
#[ignore = "takes minutes"]
fn each_missing_barrier_is_found() {
    let Some(folder) = folder("barriers") else { return };
    let cases = cases();
    let mut jobs = Vec::new();
    for (kernel, launches) in cases.values() {
        for number in 0..kernel.text().matches(BARRIER).count() {
            jobs.push(without_barrier(kernel, number, launches));
        }
    }
    let outcomes = run(&folder, &jobs);
    let unnoticed = jobs.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
    let unnoticed: Vec<&str> = unnoticed.map(|(job, _)| job.name.as_str()).collect();
    println!(
        "{} of {} missing barriers are found",
        jobs.len() - unnoticed.len(),
        jobs.len()
    );
    // ThreadSanitizer remembers only the latest accesses to a number, so now and then a run misses one.
    let missed = unnoticed.iter().filter(|name| !UNNOTICED.contains(name));
    assert!(missed.count() <= jobs.len() / 10, "not found: {unnoticed:#?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder to compile in, with `metal.h`; none, after a line that says why, if no compiler finds races.
fn folder(name: &str) -> Option<PathBuf> {
    let folder = std::env::temp_dir().join(format!("annulus-{name}-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("simd")).unwrap();
    std::fs::write(folder.join("metal_stdlib"), METAL).unwrap();
    std::fs::write(folder.join("simd/simd.h"), "").unwrap();
    let tiny = compile(&folder, "tiny", "int main() {}").and_then(|program| {
        let ended = Command::new(program)
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        if ended.status.success() { Ok(()) } else { Err(said) }
    });
    if let Err(problem) = tiny {
        let line = problem.lines().next().unwrap_or_default();
        println!("skipped: no g++ with ThreadSanitizer (Debian: g++): {line}");
        std::fs::remove_dir_all(folder).unwrap();
        return None;
    }
    Some(folder)
}

/// Every kernel with workgroup memory, and cases of it.
fn cases() -> BTreeMap<&'static str, (&'static Kernel, Vec<Launch>)> {
    let mut bench = Bench::noting();
    block_on(async {
        products::all(&mut bench).await;
        attentions::all(&mut bench).await;
        convolutions::all(&mut bench).await;
        channels::all(&mut bench).await;
        layers::all(&mut bench).await;
        vectors::all(&mut bench).await;
    });
    let shares = KERNELS
        .iter()
        .filter(|kernel| kernel.interface().workgroup_bytes > 0);
    let mut cases: BTreeMap<_, _> = shares
        .map(|kernel| (kernel.name, (*kernel, Vec::new())))
        .collect();
    for launch in bench.notes() {
        let numbers: usize = launch.inputs.iter().map(Vec::len).sum();
        let small = launch.groups.iter().product::<u32>() <= SMALL.0 && numbers <= SMALL.1;
        if let Some((_, launches)) = cases.get_mut(launch.kernel.name)
            && small
        {
            launches.push(launch);
        }
    }
    for (name, (_, launches)) in &mut cases {
        assert!(
            !launches.is_empty(),
            "{name} has workgroup memory, but no small case"
        );
        let step = launches.len().div_ceil(CASES);
        // The last ones of each step: the first cases are often of a single number.
        let mut number = 0;
        launches.retain(|_| {
            number += 1;
            number % step == 0
        });
    }
    cases
}

fn whole<'a>(kernel: &'static Kernel, launches: &'a [Launch]) -> Job<'a> {
    Job {
        name: kernel.name.to_owned(),
        kernel,
        text: kernel.text().to_owned(),
        launches,
    }
}

/// A kernel that lacks one of its barriers.
fn without_barrier<'a>(kernel: &'static Kernel, number: usize, launches: &'a [Launch]) -> Job<'a> {
    let mut text = kernel.text().to_owned();
    let (at, barrier) = text.match_indices(BARRIER).nth(number).expect("so many barriers");
    text.replace_range(at..at + barrier.len(), "");
    Job {
        name: format!("{}_without_{number}", kernel.name),
        text,
        ..whole(kernel, launches)
    }
}

/// Compares what the launches of a job wrote with what the twins make.
fn compare(bench: &mut Bench, job: &Job, found: &[Vec<Vec<f32>>]) {
    for (launch, found) in job.launches.iter().zip(found) {
        let Some((what, expected, tolerance)) = &launch.expected else {
            continue;
        };
        for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
            let what = format!("{what}: output {number}");
            bench.close(&job.name, &what, expected, found, *tolerance);
        }
    }
}

/// Compiles and runs all jobs, in a few programs at a time.
fn run(folder: &Path, jobs: &[Job]) -> Vec<Outcome> {
    let outcomes = std::thread::scope(|scope| {
        let programs: Vec<_> = jobs
            .chunks(jobs.len().div_ceil(PROGRAMS))
            .enumerate()
            .map(|(number, jobs)| scope.spawn(move || run_program(folder, &format!("kernels{number}"), jobs)))
            .collect();
        let outcomes = programs
            .into_iter()
            .map(|program| program.join().expect("no panic"));
        outcomes.collect::<Vec<_>>()
    });
    outcomes.concat()
}

/// Compiles one program of several jobs, and runs it for each.
fn run_program(folder: &Path, name: &str, jobs: &[Job]) -> Vec<Outcome> {
    let mut text = "#include <metal_stdlib>\n".to_owned();
    let mut choices = String::new();
    for job in jobs {
        let (kernel, choice) = metal(job);
        text += &kernel;
        choices += &choice;
    }
    text += &format!("int main(int, char **arguments) {{\n{choices}return 4;\n}}\n");
    let program = compile(folder, name, &text).unwrap_or_else(|problem| panic!("{problem}"));
    jobs.iter().map(|job| run_job(&program, &text, job)).collect()
}

/// A kernel in Metal's language, in a namespace of the job's name; and the line of `main` that runs it.
fn metal(job: &Job) -> (String, String) {
    let name = &job.name;
    let module = naga_metal::front::wgsl::parse_str(&job.text).expect("the kernel is valid");
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).expect("the kernel is valid");
    let options = msl::Options {
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..msl::Options::default()
    };
    let (text, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .expect("naga can write the kernel");
    // Arrays as long as their buffers are written as if they had one element, which C++ takes at its word.
    let endless = |line: &str| match (line.starts_with("typedef "), line.strip_suffix("[1];")) {
        (true, Some(array)) => format!("{array}[1 << 24];\n"),
        _ => format!("{line}\n"),
    };
    let text: String = text.lines().map(endless).collect();

    // The order of arguments is naga's: built-in values, then what is bound as it is declared, then the sizes of arrays.
    let entry = &module.entry_points[0];
    let built_in = entry
        .function
        .arguments
        .iter()
        .map(|argument| match argument.binding {
            Some(Binding::BuiltIn(BuiltIn::WorkGroupId)) => "at.group".to_owned(),
            Some(Binding::BuiltIn(BuiltIn::NumWorkGroups)) => "at.groups".to_owned(),
            Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex)) => "at.local".to_owned(),
            ref other => panic!("{name} takes {other:?}: add it here and to metal.h"),
        });
    let mut arguments: Vec<String> = built_in.collect();
    let mut memory = String::new();
    let mut shared = 0;
    for (handle, variable) in module.global_variables.iter() {
        if info.get_entry_point(0)[handle].is_empty() {
            continue;
        }
        if let Some(binding) = &variable.binding {
            arguments.push(format!("Bound{{at.buffers[{}]}}", binding.binding));
        } else if variable.space == AddressSpace::WorkGroup {
            arguments.push(format!("Bound{{at.memory[{shared}]}}"));
            write!(
                memory,
                "{}, ",
                module.types[variable.ty].inner.size(module.to_ctx())
            )
            .expect("a string takes all");
            shared += 1;
        }
    }
    arguments.push("Bound{nothing}".to_owned());
    let arguments = arguments.join(", ");
    let invocations: u32 = entry.workgroup_size.iter().product();
    let kernel = format!(
        "namespace {name} {{\n{text}\nvoid invoke(const Invocation &at) {{ main_({arguments}); }}\n}}\n"
    );
    let choice = format!(
        "if (!std::strcmp(arguments[1], \"{name}\"))\n    \
         return run_launches({invocations}, {{{memory}}}, {name}::invoke, arguments + 1);\n"
    );
    (kernel, choice)
}

/// Compiles a program; what the compiler says if it cannot.
fn compile(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let program = folder.join(name);
    let source = program.with_extension("cpp");
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("g++");
    // Without a warning for each of Metal's attributes, and with numbers such as 0.5 as Metal takes them.
    compiler.args(["-std=c++20", "-O1", "-g1", "-w", "-fsingle-precision-constant"]);
    compiler.args(["-fsanitize=thread", "-pthread", "-I"]);
    compiler.arg(folder).arg(&source).arg("-o").arg(&program);
    let ended = compiler.output().map_err(|error| format!("g++: {error}"))?;
    match ended.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&ended.stderr).into_owned()),
    }
}

/// Runs a program for all launches of a job.
fn run_job(program: &Path, text: &str, job: &Job) -> Outcome {
    let [input, output] = ["in", "out"].map(|extension| program.with_extension(extension));
    std::fs::write(&input, launches(job)).unwrap();
    let mut command = Command::new(program);
    command.arg(&job.name).args([&input, &output]);
    let options = format!("halt_on_error=1:exitcode={RACE}");
    let ended = command.env("TSAN_OPTIONS", options).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    match ended.status.code() {
        Some(0) => Ok(outputs(job, &std::fs::read(&output).unwrap())),
        Some(RACE) => Err(format!("race between\n{}", accesses(&said, text))),
        _ => Err(format!("{}: {said}", ended.status)),
    }
}

/// The launches of a job as `run_launches` reads them.
fn launches(job: &Job) -> Vec<u8> {
    let interface = job.kernel.interface();
    let mut bytes = Vec::new();
    let word = |bytes: &mut Vec<u8>, word: usize| bytes.extend((word as u32).to_le_bytes());
    word(&mut bytes, job.launches.len());
    for launch in job.launches {
        for count in launch.groups {
            word(&mut bytes, count as usize);
        }
        word(&mut bytes, (interface.inputs + interface.outputs + 1) as usize);
        let outputs = launch.outputs.iter().map(|length| vec![SENTINEL; *length]);
        for numbers in launch.inputs.iter().cloned().chain(outputs) {
            word(&mut bytes, 4 * numbers.len());
            bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        }
        let mut params = launch.params.clone();
        params.resize(interface.params_bytes as usize, 0);
        word(&mut bytes, params.len());
        bytes.extend(params);
    }
    bytes
}

/// What the launches of a job wrote.
fn outputs(job: &Job, mut bytes: &[u8]) -> Vec<Vec<Vec<f32>>> {
    let params = job.kernel.interface().params_bytes as usize;
    let mut take = |count: usize| {
        let (taken, rest) = bytes.split_at(count);
        bytes = rest;
        taken
    };
    let number = |word: &[u8]| f32::from_le_bytes(word.try_into().expect("four bytes"));
    let mut all = Vec::new();
    for launch in job.launches {
        launch
            .inputs
            .iter()
            .for_each(|numbers| _ = take(4 * numbers.len()));
        let written = launch
            .outputs
            .iter()
            .map(|length| take(4 * length).chunks(4).map(number).collect());
        all.push(written.collect());
        take(params);
    }
    all
}

/// The two lines of a program that a report of ThreadSanitizer is about.
fn accesses(report: &str, text: &str) -> String {
    let place = |line: &str| {
        let (_, number) = line.trim().strip_prefix("#0 ")?.split_once(".cpp:")?;
        let number: usize = number.split([':', ' ']).next()?.parse().ok()?;
        Some(text.lines().nth(number - 1)?.trim())
    };
    let lines: Vec<&str> = report.lines().filter_map(place).take(2).collect();
    match lines.is_empty() {
        true => report.to_owned(),
        false => lines.join("\n"),
    }
}
