//! Every text of the table, and what is wrong with others.

use std::borrow::Cow;

use super::shared::SHARED;
use super::{HALF_KERNELS, KERNELS, Kernel, MATRIX_KERNELS, include, reflect, variant};

/// WebGPU's default limits: what every adapter offers.
const STORAGE_BUFFERS: u32 = 8;
const WORKGROUP_BYTES: u32 = 16 << 10;
const INVOCATIONS: u32 = 256;

/// Workgroup memory of any adapter with matrix units.
const BYTES_BESIDE_UNITS: u32 = 32 << 10;

/// Both tables.
fn all() -> impl Iterator<Item = &'static Kernel> {
    [KERNELS, MATRIX_KERNELS].concat().into_iter()
}

#[test]
fn every_kernel_is_valid_within_the_default_limits() {
    for kernel in all() {
        let interface = reflect(kernel.name, kernel.text()).unwrap();
        assert!(
            interface.inputs + interface.outputs <= STORAGE_BUFFERS,
            "{}",
            kernel.name
        );
        let of_units = MATRIX_KERNELS.iter().any(|one| std::ptr::eq(*one, kernel));
        let most = if of_units {
            BYTES_BESIDE_UNITS
        } else {
            WORKGROUP_BYTES
        };
        assert!(interface.workgroup_bytes <= most, "{}", kernel.name);
        let invocations: u32 = interface.workgroup_size.iter().product();
        assert!(invocations <= INVOCATIONS, "{}", kernel.name);
    }
}

/// Names of the WGSL files in a folder of `wgsl/`, sorted.
fn files(folder: &str) -> Vec<String> {
    // Asked when the test runs: a build folder that several clones share keeps programs that another has compiled.
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says it");
    let folder = std::path::Path::new(&here).join(folder);
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file());
    let mut names: Vec<String> = files
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn the_tables_hold_each_file_once() {
    let own_texts = all().filter(|kernel| kernel.variant.is_none());
    let mut names: Vec<&str> = own_texts.map(|kernel| kernel.name).collect();
    names.sort_unstable();
    assert_eq!(files("wgsl"), names);
    let mut names: Vec<&str> = SHARED.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(files("wgsl/shared"), names);
}

#[test]
fn every_kernel_has_a_name_of_its_own() {
    let mut names: Vec<&str> = all().map(|kernel| kernel.name).collect();
    names.sort_unstable();
    names.dedup();
    // Burn keeps compiled kernels by name.
    assert_eq!(names.len(), all().count());
}

fn shared(name: &str) -> Option<Cow<'static, str>> {
    let (_, text) = SHARED.iter().find(|(file, _)| *file == name)?;
    Some(Cow::Borrowed(text))
}

#[test]
fn every_line_for_a_variant_is_for_one_of_the_table() {
    for own in all().filter(|kernel| kernel.variant.is_none()) {
        let text = include::expand(own.source, &shared).unwrap();
        let of_file = all().filter(|kernel| kernel.file == own.file);
        let mut known: Vec<&str> = of_file.filter_map(|kernel| kernel.variant).collect();
        known.sort_unstable();
        assert_eq!(variant::named(&text).unwrap(), known, "{}", own.name);
    }
}

#[test]
fn every_shared_file_is_included() {
    for (name, _) in SHARED {
        let line = format!("//#include \"{name}\"");
        let mut texts = all()
            .map(|kernel| kernel.source)
            .chain(SHARED.iter().map(|(_, text)| *text));
        assert!(texts.any(|text| text.lines().any(|l| l.trim() == line)), "{name}");
    }
}

#[test]
fn halves_are_read_by_those_alone_that_are_named_for_it() {
    for kernel in all() {
        let reads = kernel.text().contains("2x16float");
        let known = HALF_KERNELS.iter().any(|half| std::ptr::eq(*half, kernel));
        assert_eq!(reads, known, "{}", kernel.name);
    }
}

/// Stands for the files that may be included.
fn pair(name: &str) -> Option<Cow<'static, str>> {
    match name {
        "a" => Some("//#include \"b\"\nA".into()),
        "b" => Some("B".into()),
        "circle" => Some("//#include \"back\"".into()),
        "back" => Some("//#include \"circle\"".into()),
        _ => None,
    }
}

#[test]
fn files_are_included_once_and_in_their_includers_place() {
    let text = "1\n    //#include \"a\"\n2\n//#include \"b\"\n3";
    assert_eq!(include::expand(text, &pair), Ok("1\nB\nA\n2\n3\n".to_owned()));
    let refused = |text: &str, why: &str| {
        let problem = include::expand(text, &pair).unwrap_err();
        assert!(problem.contains(why), "{problem}");
    };
    refused("//#include \"c\"", "no shared file \"c\"");
    refused("//#include \"circle\"", "\"circle\" includes itself");
    refused("//#inclde \"a\"", "includes nothing");
    refused("//#include a", "includes nothing");
}

#[test]
fn a_variant_has_its_own_lines_and_needs_one() {
    let text = "a\n  b; //#x: c; //#y, z: d;\ne // f\n";
    let picked = |variant| variant::pick(text, variant).unwrap();
    assert_eq!(picked(None), "a\n  b;\ne // f\n");
    assert_eq!(picked(Some("x")), "a\n  c;\ne // f\n");
    assert_eq!(picked(Some("z")), "a\n  d;\ne // f\n");
    assert_eq!(variant::named(text).unwrap(), ["x", "y", "z"]);
    assert!(variant::pick(text, Some("w")).unwrap_err().contains("\"w\""));
    assert!(
        variant::pick("a //#x", None)
            .unwrap_err()
            .contains("names no variant")
    );
}

#[test]
fn texts_from_a_folder_replace_those_compiled_in() {
    let folder = std::env::temp_dir().join(format!("annulus-kernels-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("shared")).unwrap();
    let new = "//#include \"total\"\n//#include \"peak\"\nx //#scalar: y\n";
    std::fs::write(folder.join("other.wgsl"), new).unwrap();
    std::fs::write(folder.join("shared/total.wgsl"), "new\n").unwrap();
    let kernels = [
        Kernel::new("other", "old"),
        Kernel::of_file("other_scalar", "other", "old", Some("scalar")),
        Kernel::of_file("other_slim", "other", "old", Some("slim")),
        Kernel::new("third", "old\n"),
    ];
    let texts = kernels.each_ref().map(|kernel| kernel.text_with(Some(&folder)));
    std::fs::remove_dir_all(&folder).unwrap();
    let [vectors, scalars, slim, third] = texts;
    let peak = shared("peak").unwrap();
    assert_eq!(vectors, Ok(format!("new\n{peak}x\n")));
    assert_eq!(scalars, Ok(format!("new\n{peak}y\n")));
    assert!(
        slim.unwrap_err()
            .to_string()
            .starts_with("kernel other_slim: no line")
    );
    assert_eq!(third, Ok("old\n".to_owned()));
}

#[test]
fn what_breaks_the_conventions_is_named() {
    let text =
        |bindings: &str| format!("{bindings}\n@compute @workgroup_size(1) fn main() {{ out[0] = params; }}");
    let out = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;";
    let params = "@group(0) @binding(1) var<uniform> params: u32;";
    let good = reflect("good", &text(&format!("{out}{params}"))).unwrap();
    assert_eq!((good.inputs, good.outputs, good.params_bytes), (0, 1, 4));
    let bad = [
        (
            text(&format!("{out}{}", params.replace("group(0)", "group(1)"))),
            "group 0",
        ),
        (
            text(&format!("{out}{}", params.replace("binding(1)", "binding(2)"))),
            "out of order",
        ),
        ("fn main() {}".to_owned(), "one entry point"),
        (text("let x = 1;"), "kernel bad"),
    ];
    for (source, expected) in bad {
        let error = reflect("bad", &source).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
