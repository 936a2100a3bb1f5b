//! Opens plain files, and nothing else: opening a pipe would wait for its other end.
//!
//! A file that the user named may be a link ([`named`]). A run's folder may come from somebody else, who could plant links
//! to the user's own files. There every link is refused ([`own`], [`folder`]).

use std::fmt;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Permissions of a new file in a run's folder: others may read it and not write, whatever the umask.
#[cfg(all(unix, feature = "native"))]
pub(crate) const OWNERS: u32 = 0o644;

/// Something else stands where a plain file or folder should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Odd {
    /// Its kind, in words.
    pub what: &'static str,
    /// Whether it lies in a run's folder. Otherwise the user named it.
    planted: bool,
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, planted } = self;
        match planted {
            false => write!(f, "is {what}: name a file"),
            true => write!(
                f,
                "is {what}, and a run's folder may hold plain files only: a link or a pipe could lead to your other files. \
                 Remove it, or use another folder"
            ),
        }
    }
}

impl std::error::Error for Odd {}

/// The odd file that an error is about, if any.
pub fn odd(error: &io::Error) -> Option<Odd> {
    error.get_ref()?.downcast_ref::<Odd>().copied()
}

/// Opens a file that the user named, for reading.
pub fn named(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true), false)
}

/// Fails unless a path that the user named is a plain file.
pub fn is_file(metadata: &Metadata) -> io::Result<()> {
    plain(metadata.file_type(), false)
}

/// Opens a file of a run's folder with `options`. Do not truncate before the folder's lock is held. A file that this makes can
/// be written by its owner alone, whatever the umask.
#[cfg(feature = "native")]
pub fn own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open(path, options, true)
}

/// Opens a file of a run's folder for reading.
#[cfg(feature = "native")]
pub fn own_to_read(path: &Path) -> io::Result<File> {
    own(path, OpenOptions::new().read(true))
}

/// Opens or makes a file that serves as a lock. Leaves its content as it is.
#[cfg(feature = "native")]
pub fn lock_file(path: &Path) -> io::Result<File> {
    own(
        path,
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false),
    )
}

/// Makes a folder within a run's folder, unless it exists. Only its owner can write there, whatever the umask.
#[cfg(feature = "native")]
pub fn make_folder(path: &Path) -> io::Result<()> {
    match own_folder_builder().create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => folder(path),
        made => made,
    }
}

/// Makes folders that only their owner can write to, whatever the umask.
#[cfg(feature = "native")]
pub fn own_folder_builder() -> fs::DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o755);
    builder
}

/// Fails unless a folder within a run's folder is a real one, and no link.
#[cfg(feature = "native")]
pub fn folder(path: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    match kind.is_dir() {
        true => Ok(()),
        false => Err(odd_error(kind, true)),
    }
}

fn open(path: &Path, options: &mut OpenOptions, planted: bool) -> io::Result<File> {
    // Look before opening, because opening some devices has effects. Look again afterwards, in case it was exchanged.
    let seen = match planted {
        false => fs::metadata(path),
        true => fs::symlink_metadata(path),
    };
    match seen {
        Ok(metadata) => plain(metadata.file_type(), planted)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    #[cfg(all(unix, feature = "native"))]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let no_link = if planted { libc::O_NOFOLLOW } else { 0 };
        options.custom_flags(libc::O_NONBLOCK | no_link);
        if planted {
            options.mode(OWNERS);
        }
    }
    let file = options.open(path)?;
    plain(file.metadata()?.file_type(), planted)?;
    Ok(file)
}

fn plain(kind: FileType, planted: bool) -> io::Result<()> {
    match kind.is_file() {
        true => Ok(()),
        false => Err(odd_error(kind, planted)),
    }
}

fn odd_error(kind: FileType, planted: bool) -> io::Error {
    let what = words(kind);
    io::Error::new(io::ErrorKind::InvalidInput, Odd { what, planted })
}

fn words(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        } else if kind.is_socket() {
            return "a socket";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    match (kind.is_symlink(), kind.is_dir()) {
        (true, _) => "a link",
        (_, true) => "a folder",
        _ => "no folder",
    }
}

/// Fills a buffer from a place in a file.
///
/// # Errors
///
/// If the file ends before, or cannot be read.
pub fn read_at(file: &File, buffer: &mut [u8], place: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, buffer, place)
    }
    #[cfg(not(unix))]
    {
        use std::io::{Read, Seek, SeekFrom};
        // Threads share the file's position.
        static PLACE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _alone = PLACE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut file = file;
        file.seek(SeekFrom::Start(place))?;
        file.read_exact(buffer)
    }
}

#[cfg(all(test, unix, feature = "native"))]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use std::ffi::CString;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_plain_files_are_opened_and_links_where_the_user_has_named_them() {
        let scratch = Scratch::new();
        let at = |name: &str| scratch.0.join(name);
        fs::write(at("file"), "kept").unwrap();
        fs::create_dir(at("folder")).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        let pipe = CString::new(at("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);

        let text = |file: io::Result<File>| {
            let mut text = String::new();
            file.and_then(|mut file| file.read_to_string(&mut text))
                .map(|_| text)
        };
        assert_eq!(text(named(&at("file"))).unwrap(), "kept");
        assert_eq!(text(named(&at("link"))).unwrap(), "kept");
        assert_eq!(text(own_to_read(&at("file"))).unwrap(), "kept");
        let what = |file: io::Result<File>| file.err().and_then(|error| odd(&error)).map(|odd| odd.what);
        for (name, as_named, as_own) in [
            ("link", None, Some("a link")),
            ("dangling", None, Some("a link")),
            ("zero", Some("a device"), Some("a link")),
            ("pipe", Some("a pipe"), Some("a pipe")),
            ("folder", Some("a folder"), Some("a folder")),
        ] {
            assert_eq!(what(named(&at(name))), as_named, "{name}");
            assert_eq!(what(own_to_read(&at(name))), as_own, "{name}");
            assert_eq!(what(lock_file(&at(name))), as_own, "{name}");
        }
        assert!(!at("nowhere").exists(), "a link was followed to make a file");
        drop(lock_file(&at("file")).unwrap());
        assert_eq!(fs::read(at("file")).unwrap(), b"kept", "a lock empties nothing");

        symlink(at("folder"), at("folders link")).unwrap();
        make_folder(&at("folder")).unwrap();
        make_folder(&at("another")).unwrap();
        let error = make_folder(&at("folders link")).unwrap_err();
        assert_eq!(odd(&error).unwrap().what, "a link");
    }
}
