//! Where a system keeps what belongs to a user and not to a run.

use std::path::PathBuf;

/// For what can be fetched again.
pub fn cache() -> Option<PathBuf> {
    ours("XDG_CACHE_HOME", "LOCALAPPDATA", "Library/Caches", ".cache")
}

/// For what is to stay.
pub fn data() -> Option<PathBuf> {
    ours(
        "XDG_DATA_HOME",
        "APPDATA",
        "Library/Application Support",
        ".local/share",
    )
}

/// The folder that a variable names. As the XDG specification wants it, one that is relative is passed over.
pub fn named(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(variable)?);
    path.is_absolute().then_some(path)
}

/// Our part of the folder that XDG's variable names, or else of what is usual: on Windows another variable says it, elsewhere
/// it is in the user's home.
fn ours(xdg: &str, windows: &str, mac: &str, other: &str) -> Option<PathBuf> {
    let usual = || match std::env::consts::OS {
        "windows" => named(windows),
        "macos" => Some(named("HOME")?.join(mac)),
        _ => Some(named("HOME")?.join(other)),
    };
    Some(named(xdg).or_else(usual)?.join("annulus"))
}
