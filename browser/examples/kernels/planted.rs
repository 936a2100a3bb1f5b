//! WGSL texts that a browser must refuse, among one that it must take.

use annulus_shaders::kernel::reflect;

/// A text that is wrong, and where.
pub struct Planted {
    /// Its name.
    pub name: &'static str,
    /// The text.
    pub text: String,
    /// The line that a browser names; none where no line is wrong by itself.
    pub line: Option<u32>,
    /// Whether naga, which checks texts natively, sees it too.
    pub naga_sees_it: bool,
}

/// A text like a kernel's, of five lines, with a statement in its fourth.
fn with(workgroup: &str, statement: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
         @group(0) @binding(1) var<uniform> params: u32; {workgroup}
         @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {{
             {statement} out[lane] = params;
         }}"
    )
}

/// A text that any browser takes.
pub fn good() -> String {
    with("", "")
}

/// Wrong in different ways.
pub fn all() -> Vec<Planted> {
    let large = with(
        "var<workgroup> large: array<u32, 8192>;",
        "large[lane] = lane; workgroupBarrier();",
    );
    let uneven = with(
        "var<workgroup> shared_flag: u32;",
        "if shared_flag == 0u { workgroupBarrier(); }",
    );
    vec![
        Planted {
            name: "no_such_function",
            text: with("", "no_such_function();"),
            line: Some(4),
            naga_sees_it: true,
        },
        // Each invocation might read another flag: the language's rules of uniformity forbid a barrier after it.
        Planted {
            name: "uneven_barrier",
            text: uneven,
            line: Some(4),
            naga_sees_it: false,
        },
        // 32 KiB, of which each device promises the half.
        Planted {
            name: "large_workgroup",
            text: large,
            line: None,
            naga_sees_it: false,
        },
    ]
}

impl Planted {
    /// Whether naga refuses it.
    pub fn naga_refuses(&self) -> bool {
        reflect(self.name, &self.text).is_err()
    }
}
