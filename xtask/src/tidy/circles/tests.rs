//! Planted circles, and what looks like one.

use super::*;
use std::fs;

/// The circles of a crate of these files, each as the names of its files, and the imports of all.
fn planted(name: &str, files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let root = std::env::temp_dir().join(format!("annulus-circles-{name}-{}", std::process::id()));
    for (file, text) in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let found = circles(&Crate::read(&root.join("lib.rs")));
    fs::remove_dir_all(&root).unwrap();
    let short = |file: &Path| file.strip_prefix(&root).unwrap().display().to_string();
    let names = found.iter().map(|circle| {
        let files: Vec<String> = circle.files.iter().map(|file| short(file)).collect();
        files.join(" ")
    });
    let imports = found.iter().flat_map(|circle| &circle.imports);
    let imports = imports.map(|(file, what)| format!("{}:{what}", short(file)));
    (names.collect(), imports.collect())
}

const LIB: (&str, &str) = ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use b::B;");

#[test]
fn circles_are_found_however_they_are_written() {
    let a = "use crate::b::{self, other::X, B as Other};\npub struct A;";
    let (found, imports) = planted(
        "use",
        &[
            LIB,
            ("a.rs", a),
            ("b.rs", "use super::a::A;\npub struct B;"),
            ("c.rs", ""),
        ],
    );
    assert_eq!(found, ["a.rs b.rs"]);
    assert_eq!(imports, ["a.rs:1: crate::b::other::X", "b.rs:1: super::a::A"]);
    // Three, by a path in the code, a glob, and a module that an import named.
    let (found, _) = planted(
        "three",
        &[
            LIB,
            ("a.rs", "pub struct A; fn f() -> Vec<crate::b::B> { loop {} }"),
            ("b.rs", "use crate::c::*; pub struct B;"),
            ("c.rs", "use crate::a; fn f() { a::A; }"),
        ],
    );
    assert_eq!(found, ["a.rs b.rs c.rs"]);
    // Two circles with nothing in common are two.
    let (found, _) = planted(
        "two",
        &[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A; use crate::c::C;"),
            ("c.rs", "use crate::d::D;"),
            ("d.rs", "use crate::c::C;"),
        ],
    );
    assert_eq!(found, ["a.rs b.rs", "c.rs d.rs"]);
}

#[test]
fn what_the_root_hands_on_of_another_crate_leads_out_of_this_one() {
    let (found, _) = planted(
        "outside",
        &[
            ("lib.rs", "mod a; pub use other::net; fn f() { a::g(); }"),
            ("a.rs", "use crate::net::Link; pub fn g() {}"),
        ],
    );
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_name_is_sought_where_it_is_defined() {
    // By way of the root, and of a module that hands it on.
    let a = ("a.rs", "use crate::B; pub struct A;");
    let b = ("b.rs", "use crate::A; pub struct B;");
    let (found, _) = planted("root", &[LIB, a, b, ("c.rs", "")]);
    assert_eq!(found, ["a.rs b.rs"]);
    let lib = ("lib.rs", "mod a; mod c;");
    let a = ("a.rs", "use crate::c::D; pub struct A;");
    let signpost = ("c/mod.rs", "mod d; pub use d::D; pub use super::a::A;");
    let (found, _) = planted("signpost", &[lib, a, signpost, ("c/d.rs", "pub struct D;")]);
    assert!(found.is_empty(), "{found:?}");
    let (found, imports) = planted(
        "through",
        &[lib, a, signpost, ("c/d.rs", "use super::A; pub struct D;")],
    );
    assert_eq!(found, ["a.rs c/d.rs"]);
    assert_eq!(imports, ["a.rs:1: crate::c::D", "c/d.rs:1: super::A"]);
}

#[test]
fn a_module_and_its_own_files_have_in_common_what_is_the_modules() {
    let lib = ("lib.rs", "mod a; mod c;");
    let inside = ("c/d.rs", "use super::C; pub struct D;");
    let parent = (
        "c/mod.rs",
        "mod d; pub use d::D; pub struct C; fn f() { d::g(); }",
    );
    let (found, _) = planted("parent", &[lib, ("a.rs", ""), parent, inside]);
    assert!(found.is_empty(), "{found:?}");
    // But no way out of the module leads back into it.
    let (found, _) = planted(
        "out",
        &[
            lib,
            ("a.rs", "use crate::c::C;"),
            parent,
            ("c/d.rs", "use crate::a::A;"),
        ],
    );
    assert_eq!(found, ["a.rs c/mod.rs c/d.rs"]);
    // What a module hands on and uses itself it needs.
    let parent = ("c/mod.rs", "mod d; pub use crate::a::A; pub struct C(A);");
    let (found, _) = planted(
        "own",
        &[
            lib,
            ("a.rs", "use crate::c::C; pub struct A;"),
            parent,
            ("c/d.rs", ""),
        ],
    );
    assert_eq!(found, ["a.rs c/mod.rs"]);
}

#[test]
fn tests_comments_strings_and_other_crates_do_not_count() {
    let a = "use crate::b::B;\n#[cfg(test)]\nmod tests;";
    let b = "//! [`crate::a::A`]\nuse other::a::A; use a::A as B; const S: &str = \"crate::a::A\";
        #[cfg(test)]\nmod tests { use crate::a::A; use super::*; }";
    let (found, _) = planted(
        "tests",
        &[
            LIB,
            ("a.rs", a),
            ("a/tests.rs", "use super::*;"),
            ("b.rs", b),
            ("c.rs", ""),
        ],
    );
    assert!(found.is_empty(), "{found:?}");
    // Modules within a file are that file.
    let (found, _) = planted(
        "inline",
        &[
            LIB,
            ("a.rs", "mod x { pub use super::Y; } use x::Y as Z; struct Y;"),
            ("b.rs", ""),
            ("c.rs", ""),
        ],
    );
    assert!(found.is_empty(), "{found:?}");
}
