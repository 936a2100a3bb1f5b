//! Observes this machine: its clock, its power supply, and other work on it, as Linux reports them. The variable
//! `ANNULUS_MACHINE` names a file that is read instead, to play through what limits do.

use crate::options::When;
use serde::Deserialize;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The environment variable that names the file.
const VARIABLE: &str = "ANNULUS_MACHINE";

/// Time over which other work is averaged.
const WINDOW: Duration = Duration::from_secs(10);

/// The state of a machine, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Minutes since midnight, local time.
    pub minute: Option<u16>,
    /// Whether it runs on battery.
    pub on_battery: Option<bool>,
    /// The share of its processors that others use, 0 to 1. Processes with niceness yield by themselves and do not
    /// count.
    pub others: Option<f64>,
}

/// The observers.
#[derive(Debug)]
pub struct Senses {
    file: Option<PathBuf>,
    ticks: VecDeque<Ticks>,
}

impl Senses {
    /// Observers that have not observed anything yet.
    pub fn of_here() -> Self {
        Self {
            file: std::env::var_os(VARIABLE).map(PathBuf::from),
            ticks: VecDeque::new(),
        }
    }

    /// A condition that a rule needs and this system does not report, in words.
    pub fn missing(&self, when: &When) -> Option<&'static str> {
        if self.file.is_some() {
            return None;
        }
        if when.hours.is_some() && minute().is_none() {
            return Some("what time of the day it is");
        }
        if when.plugged_in && !cfg!(target_os = "linux") {
            return Some("whether it is plugged in");
        }
        (when.idle && Ticks::now().is_none()).then_some("what others do on it")
    }

    /// Observes what the rules need.
    pub fn look(&mut self, when: &When) -> Machine {
        if let Some(file) = &self.file {
            return faked(file);
        }
        Machine {
            minute: when.hours.and_then(|_| minute()),
            on_battery: when.plugged_in.then(|| is_on_battery(Path::new(SUPPLIES))),
            others: when.idle.then(|| self.others()).flatten(),
        }
    }

    fn others(&mut self) -> Option<f64> {
        let now = Ticks::now()?;
        self.ticks.push_back(now);
        while self
            .ticks
            .get(1)
            .is_some_and(|second| now.at - second.at >= WINDOW)
        {
            self.ticks.pop_front();
        }
        self.ticks.front()?.until(&now)
    }
}

/// The machine that a file describes. While the file is being written, nothing is known.
fn faked(file: &Path) -> Machine {
    let text = std::fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Minutes since midnight, local time.
#[cfg(unix)]
fn minute() -> Option<u16> {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    let now = libc::time_t::try_from(since.as_secs()).ok()?;
    // SAFETY: a broken-down time is plain numbers and a pointer, all of which may be 0. The call reads one and writes
    // the other, and returns null if it has written nothing.
    let local = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        (!libc::localtime_r(&now, &mut local).is_null()).then_some(local)
    }?;
    u16::try_from(60 * local.tm_hour + local.tm_min).ok()
}

#[cfg(not(unix))]
fn minute() -> Option<u16> {
    None
}

/// Where Linux reports power supplies.
const SUPPLIES: &str = "/sys/class/power_supply";

/// Whether the machine runs on battery. A machine without a battery is plugged in.
fn is_on_battery(supplies: &Path) -> bool {
    let entries = std::fs::read_dir(supplies).into_iter().flatten().flatten();
    let (mut discharges, mut plugged) = (false, false);
    for entry in entries {
        let says = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        match says("type").trim() {
            // A mouse has one too.
            "Battery" if says("scope").trim() != "Device" => {
                discharges |= says("status").trim() == "Discharging"
            }
            "Mains" | "USB" => plugged |= says("online").trim() == "1",
            _ => {}
        }
    }
    discharges && !plugged
}

/// Processor time so far, in the system's ticks.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    at: Instant,
    /// All ticks, idle or not.
    all: u64,
    /// Of those, the ticks of processes that do not yield to others.
    busy: u64,
    /// Of those, this process's.
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let (all, busy) = all_and_busy(&stat)?;
        let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
        let own = threads.filter_map(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
            ticks_of_thread(&stat)
        });
        Some(Self {
            at: Instant::now(),
            all,
            busy,
            own: own.sum(),
        })
    }

    /// The share of all ticks between two moments that others used.
    fn until(&self, later: &Self) -> Option<f64> {
        let all = later.all.checked_sub(self.all).filter(|all| *all > 0)?;
        // Threads that have ended no longer count.
        let own = later.own.saturating_sub(self.own);
        let busy = later.busy.saturating_sub(self.busy);
        Some(busy.saturating_sub(own) as f64 / all as f64)
    }
}

/// All ticks of a machine's processors, and those that do not yield, from `/proc/stat`.
fn all_and_busy(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
    // User, nice, system, idle, waiting for disks, hard and soft interrupts, stolen; guests are included in user and
    // nice.
    let &[user, nice, system, idle, waits, hard, soft, stolen, ..] = &ticks[..] else {
        return None;
    };
    let busy = user + system + hard + soft;
    Some((busy + nice + idle + waits + stolen, busy))
}

/// A thread's ticks among those that do not yield, from its `stat`.
fn ticks_of_thread(stat: &str) -> Option<u64> {
    // The name may contain anything; it ends with the last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<i64> = fields
        .split_whitespace()
        .skip(1)
        .map_while(|n| n.parse().ok())
        .collect();
    let (user, system, nice) = (*fields.get(10)?, *fields.get(11)?, *fields.get(15)?);
    u64::try_from(if nice > 0 { system } else { user + system }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_machine_lives_on_its_battery_when_that_is_all_it_has() {
        let scratch = Scratch::new();
        let supply = |name: &str, entries: &[(&str, &str)]| {
            let folder = scratch.0.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            for (entry, says) in entries {
                std::fs::write(folder.join(entry), format!("{says}\n")).unwrap();
            }
        };
        assert!(!is_on_battery(&scratch.0.join("none")));
        supply(
            "mouse",
            &[
                ("type", "Battery"),
                ("scope", "Device"),
                ("status", "Discharging"),
            ],
        );
        supply("AC", &[("type", "Mains"), ("online", "1")]);
        assert!(!is_on_battery(&scratch.0));
        supply("BAT0", &[("type", "Battery"), ("status", "Discharging")]);
        assert!(!is_on_battery(&scratch.0), "a weak plug is one");
        supply("AC", &[("online", "0")]);
        assert!(is_on_battery(&scratch.0));
        supply("BAT0", &[("status", "Full")]);
        assert!(!is_on_battery(&scratch.0));
    }

    #[test]
    fn the_work_of_others_is_all_but_ours_and_what_makes_way() {
        let stat = "cpu  100 2000 30 400 50 6 7 80 9 10\ncpu0 1 2 3\n";
        assert_eq!(
            all_and_busy(stat),
            Some((100 + 2000 + 30 + 400 + 50 + 6 + 7 + 80, 143))
        );
        assert_eq!(all_and_busy("cpu  1 2\n"), None);
        let thread = |nice: i64| format!("42 (a) b (c) S 1 1 1 0 -1 64 1 2 3 4 500 60 7 8 20 {nice} 9 0 100");
        assert_eq!(ticks_of_thread(&thread(0)), Some(560));
        assert_eq!(ticks_of_thread(&thread(10)), Some(60));
        let at = Instant::now();
        let ticks = |all, busy, own| Ticks { at, all, busy, own };
        assert_eq!(ticks(0, 0, 0).until(&ticks(1000, 600, 350)), Some(0.25));
        assert_eq!(ticks(0, 0, 500).until(&ticks(1000, 600, 400)), Some(0.6));
        assert_eq!(ticks(5, 0, 0).until(&ticks(5, 0, 0)), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_real_sources_answer() {
        let all = When {
            hours: Some("0-24".parse().unwrap()),
            plugged_in: true,
            idle: true,
        };
        let mut senses = Senses {
            file: None,
            ticks: VecDeque::new(),
        };
        assert_eq!(senses.missing(&all), None);
        senses.look(&all);
        std::thread::sleep(Duration::from_millis(200));
        let machine = senses.look(&all);
        assert!(
            machine.minute.is_some_and(|minute| minute < 24 * 60),
            "{machine:?}"
        );
        assert!(
            machine.others.is_some_and(|others| (0.0..=1.0).contains(&others)),
            "{machine:?}"
        );
        assert!(machine.on_battery.is_some());
    }

    #[test]
    fn a_file_is_believed_when_it_is_whole() {
        let scratch = Scratch::new();
        let file = scratch.0.join("machine");
        assert_eq!(faked(&file), Machine::default());
        std::fs::write(&file, r#"{"on_battery": true, "others": 0.5}"#).unwrap();
        let expected = Machine {
            on_battery: Some(true),
            others: Some(0.5),
            minute: None,
        };
        assert_eq!(faked(&file), expected);
        std::fs::write(&file, r#"{"on_battery": tr"#).unwrap();
        assert_eq!(faked(&file), Machine::default());
    }
}
