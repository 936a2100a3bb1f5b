//! The system's folders for data that belongs to a user and not to a run.

use std::path::PathBuf;

/// The folder for data that can be fetched again.
pub fn cache() -> Option<PathBuf> {
    ours("XDG_CACHE_HOME", "LOCALAPPDATA", "Library/Caches", ".cache")
}

/// The folder for data that should stay.
pub fn data() -> Option<PathBuf> {
    ours(
        "XDG_DATA_HOME",
        "APPDATA",
        "Library/Application Support",
        ".local/share",
    )
}

/// The folder in an environment variable. A relative one is ignored, as the XDG specification requires.
pub fn named(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(variable)?);
    path.is_absolute().then_some(path)
}

/// Our folder: within XDG's variable if it is set, else in the usual place, which on Windows another variable names and
/// which is elsewhere in the user's home.
fn ours(xdg: &str, windows: &str, mac: &str, other: &str) -> Option<PathBuf> {
    let usual = || match std::env::consts::OS {
        "windows" => named(windows),
        "macos" => Some(named("HOME")?.join(mac)),
        _ => Some(named("HOME")?.join(other)),
    };
    Some(named(xdg).or_else(usual)?.join("annulus"))
}
