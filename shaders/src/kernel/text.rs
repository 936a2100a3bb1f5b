//! A kernel and its text.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::reflect::{Interface, KernelError, reflect};
use super::shared::SHARED;
use super::{include, variant};

/// A kernel: a WGSL file with the entry point `main`, or another text of one.
#[derive(Debug)]
pub struct Kernel {
    /// The name of its file, without `.wgsl`, and what its variant is called.
    pub name: &'static str,
    /// The file's name alone.
    pub(super) file: &'static str,
    /// The file's text that was compiled in.
    pub(super) source: &'static str,
    pub(super) variant: Option<&'static str>,
    text: OnceLock<String>,
    interface: OnceLock<Interface>,
    launches: AtomicU64,
}

/// The environment variable with a folder of WGSL files to be taken instead of those compiled in,
/// where it has them: for work on a kernel without compiling anything.
pub const FOLDER_VARIABLE: &str = "ANNULUS_WGSL";

impl Kernel {
    /// A kernel that is not in the table.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self::of_file(name, name, source, None)
    }

    /// A text of a file.
    pub(super) const fn of_file(
        name: &'static str,
        file: &'static str,
        source: &'static str,
        variant: Option<&'static str>,
    ) -> Self {
        Self {
            name,
            file,
            source,
            variant,
            text: OnceLock::new(),
            interface: OnceLock::new(),
            launches: AtomicU64::new(0),
        }
    }

    /// The text as a compiler takes it: made of what was compiled in, or of files in the folder of [`FOLDER_VARIABLE`].
    ///
    /// # Panics
    ///
    /// If it cannot be made, which a test rules out for what was compiled in.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let folder = std::env::var_os(FOLDER_VARIABLE);
            let text = self.text_with(folder.as_deref().map(Path::new));
            text.unwrap_or_else(|error| panic!("{error}"))
        })
    }

    /// The text, with the files of a folder where it has them.
    pub(super) fn text_with(&self, folder: Option<&Path>) -> Result<String, KernelError> {
        let read = |file: &str| {
            let path = folder?.join(file).with_extension("wgsl");
            std::fs::read_to_string(path).ok()
        };
        let source = read(self.file).map_or(Cow::Borrowed(self.source), Cow::Owned);
        let shared = |name: &str| {
            let compiled_in = || SHARED.iter().find(|(shared, _)| *shared == name);
            read(&format!("shared/{name}"))
                .map(Cow::Owned)
                .or_else(|| compiled_in().map(|(_, text)| Cow::Borrowed(*text)))
        };
        include::expand(&source, &shared)
            .and_then(|text| variant::pick(&text, self.variant))
            .map_err(|problem| KernelError {
                kernel: self.name.to_owned(),
                problem,
            })
    }

    /// Its bindings and workgroup.
    ///
    /// # Panics
    ///
    /// If the text is no valid kernel, which a test rules out for all of [`KERNELS`](super::KERNELS).
    pub fn interface(&self) -> &Interface {
        self.interface
            .get_or_init(|| match reflect(self.name, self.text()) {
                Ok(interface) => interface,
                Err(error) => panic!("{error}"),
            })
    }

    /// How often this process has launched it so far.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// It is launched once more.
    pub(crate) fn count_launch(&self) {
        self.launches.fetch_add(1, Ordering::Relaxed);
    }
}
