//! The memory limit of the control group that this process runs in: that of a container, a service or a batch job. Linux ends
//! a process that exceeds it, without a word.
//!
//! It knows both versions of control groups, as `/proc` and the mounted file system tell of them.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Larger numbers mean that there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// What a control group allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Bytes of memory that all its processes may take together.
    pub limit: u64,
    /// Bytes of that which none of them has taken.
    pub free: u64,
}

/// What this process's group, and each group above it, allows; none if nothing limits it.
pub fn allowed() -> Option<Allowed> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let own = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    least(&folders(&own, &mounts), read)
}

/// The folders of a process's groups: its own, and those above. `own` and `mounts` are what Linux says of a process in
/// `cgroup` and `mountinfo`.
fn folders(own: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for mount in mounts.lines() {
        let Some((place, kind)) = mount.split_once(" - ") else {
            continue;
        };
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let (&[_, _, _, root, point, ..], &[kind, _, options, ..]) = (&place[..], &kind[..]) else {
            continue;
        };
        let names = |controllers: &str| controllers.split(',').any(|name| name == "memory");
        let is_own = |line: &&str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next().unwrap_or_default();
            match kind {
                "cgroup2" => line.starts_with("0::"),
                "cgroup" => names(options) && names(controllers),
                _ => false,
            }
        };
        let Some(path) = own
            .lines()
            .find(is_own)
            .and_then(|line| line.splitn(3, ':').nth(2))
        else {
            continue;
        };
        // In a container the mounted tree may begin at its own group.
        let below = Path::new(path).strip_prefix(root).ok();
        let within = |path: &&Path| !path.components().any(|part| part == Component::ParentDir);
        let below = below.filter(within).unwrap_or(Path::new(""));
        let point = Path::new(point);
        // Joined with nothing, a path would get a slash.
        let folder: PathBuf = point.components().chain(below.components()).collect();
        let groups = folder.ancestors().take_while(|folder| folder.starts_with(point));
        folders.extend(groups.map(Path::to_path_buf));
    }
    folders
}

/// The least that these groups allow.
fn least(folders: &[PathBuf], read: impl Fn(&Path) -> Option<String>) -> Option<Allowed> {
    let number = |folder: &Path, name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
    let of = |folder: &PathBuf| {
        let names = ["memory.max", "memory.high", "memory.limit_in_bytes"];
        let limits = names.iter().filter_map(|name| number(folder, name));
        let limit = limits.min().filter(|limit| *limit < NO_LIMIT)?;
        let used = ["memory.current", "memory.usage_in_bytes"];
        let used = used.iter().find_map(|name| number(folder, name)).unwrap_or(0);
        // Copies of files count as used, and go when there is need.
        let stat = read(&folder.join("memory.stat")).unwrap_or_default();
        let words = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            let is_file = ["total_inactive_file", "inactive_file"].contains(&name);
            bytes.trim().parse::<u64>().ok().filter(|_| is_file)
        };
        let files = stat.lines().filter_map(words).max().unwrap_or(0);
        let free = limit.saturating_sub(used.saturating_sub(files));
        Some(Allowed { limit, free })
    };
    let all: Vec<Allowed> = folders.iter().filter_map(of).collect();
    Some(Allowed {
        limit: all.iter().map(|group| group.limit).min()?,
        free: all.iter().map(|group| group.free).min()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn paths(own: &str, mounts: &str) -> Vec<String> {
        let folders = folders(own, mounts);
        folders.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_groups_of_a_process_are_found_in_both_versions() {
        let own = "4:memory:/slurm/job_7\n1:cpu:/other\n0::/\n";
        assert_eq!(
            paths(own, V1),
            [
                "/sys/fs/cgroup/memory/slurm/job_7",
                "/sys/fs/cgroup/memory/slurm",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified"
            ]
        );
        assert_eq!(
            paths("0::/user.slice/a.service\n", V2),
            [
                "/sys/fs/cgroup/user.slice/a.service",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup"
            ]
        );
        let of_container = V1.replace("0:32 / ", "0:32 /docker/x ");
        assert_eq!(
            paths("4:memory:/docker/x\n", &of_container)[0],
            "/sys/fs/cgroup/memory"
        );
        assert_eq!(paths("4:memory:/../..\n", V1)[0], "/sys/fs/cgroup/memory");
        assert!(paths("", "").is_empty() && paths(own, "nonsense").is_empty());
    }

    #[test]
    fn the_least_limit_counts_and_files_in_memory_are_free() {
        let group = |files: &'static [(&'static str, &'static str)]| {
            let folders = [PathBuf::from("/g/a"), PathBuf::from("/g")];
            let read = |path: &Path| {
                let found = files.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| (*text).to_owned())
            };
            least(&folders, read).map(|Allowed { limit, free }| (limit, free))
        };
        assert_eq!(
            group(&[
                ("/g/a/memory.max", "400000000\n"),
                ("/g/a/memory.current", "300000000\n"),
                ("/g/a/memory.stat", "anon 5\ninactive_file 100000000\n"),
                ("/g/memory.max", "max\n"),
            ]),
            Some((400_000_000, 200_000_000))
        );
        assert_eq!(
            group(&[
                ("/g/a/memory.max", "max"),
                ("/g/memory.max", "900"),
                ("/g/memory.high", "800")
            ]),
            Some((800, 800))
        );
        assert_eq!(
            group(&[
                ("/g/a/memory.limit_in_bytes", "1000\n"),
                ("/g/a/memory.usage_in_bytes", "900\n"),
                ("/g/a/memory.stat", "inactive_file 0\ntotal_inactive_file 300\n"),
                ("/g/memory.limit_in_bytes", "9223372036854771712\n"),
            ]),
            Some((1000, 400))
        );
        assert_eq!(
            group(&[("/g/memory.limit_in_bytes", "9223372036854771712\n")]),
            None
        );
        assert_eq!(group(&[]), None);
    }
}
