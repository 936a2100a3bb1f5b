//! How much of its machine a participant takes: a part of the device's time, and some of the cores.

use std::time::{Duration, Instant};

/// Has a device rest after it has worked, so that it computes for no more than a part of the time.
///
/// It rests before the next job and not after the last one: what a job is made of the others wait for, and while its round's
/// sums travel there is time to rest that costs nobody anything.
#[derive(Debug)]
pub struct Pace {
    power: f64,
    rested_at: Option<Instant>,
    /// What the process had taken of each core when the device had worked last.
    processor: Option<Duration>,
}

impl Pace {
    /// A device that may compute for so much of the time, of 1.
    pub fn new(power: f64) -> Self {
        Self {
            power,
            rested_at: None,
            processor: None,
        }
    }

    /// How long there is to rest at a time.
    pub fn rest(&self, now: Instant) -> Duration {
        self.rested_at
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// The device has worked from one time to another, at the end of which the process has taken so much of each core that it
    /// may use: asked only where it matters, since to know it takes a dozen calls to the system. What it has taken beside the
    /// device's work, for the protocol, is paid for with rest as well.
    pub fn worked(&mut self, began: Instant, ended: Instant, processor: impl FnOnce() -> Duration) {
        if self.power == 1.0 {
            return;
        }
        let processor = processor();
        let before = self.processor.replace(processor).unwrap_or(processor);
        let work = ended - began;
        let beside = processor.saturating_sub(before).saturating_sub(work);
        let rest = (work + beside).mul_f64(1.0 / self.power).saturating_sub(work);
        self.rested_at = Some(ended + rest);
    }

    /// What a speed that was measured without rest comes to.
    pub fn speed(&self, speed: u64) -> u64 {
        (speed as f64 * self.power) as u64
    }
}

/// What this process has taken of each core that it may use; nothing where the system does not say.
pub fn processor_time() -> Duration {
    #[cfg(unix)]
    {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes one `timespec`, which is there.
        if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } == 0 {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
            return Duration::new(time.tv_sec as u64, time.tv_nsec as u32) / cores as u32;
        }
    }
    Duration::ZERO
}

/// Keeps this thread, and those that it starts, to so many of the cores that it may use.
///
/// # Errors
///
/// If the system refuses.
#[cfg(target_os = "linux")]
pub fn keep_to_cores(count: usize) -> std::io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of cores is plain bits, of which all may be 0; the calls read and write no more than one set.
    unsafe {
        let mut may: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size, &mut may) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut keep: libc::cpu_set_t = std::mem::zeroed();
        let all = 0..8 * size;
        let usable = all.filter(|core| libc::CPU_ISSET(*core, &may));
        usable.take(count).for_each(|core| libc::CPU_SET(core, &mut keep));
        match libc::sched_setaffinity(0, size, &keep) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// Where the system has no such thing.
#[cfg(not(target_os = "linux"))]
pub fn keep_to_cores(_count: usize) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Has this thread, and those that it starts, stand back behind other processes. Where the system refuses, it does not.
#[cfg(target_os = "linux")]
pub fn be_nice(niceness: u8) {
    // SAFETY: sets a number of this thread, which is what 0 means on Linux; there is nothing to read or write.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness.into()) };
}

/// Where niceness is the whole process's, which others wait for.
#[cfg(not(target_os = "linux"))]
pub fn be_nice(_niceness: u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_rests_for_as_long_as_its_work_asks_for() {
        let mut pace = Pace::new(0.25);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(pace.rest(begin), Duration::ZERO);
        let taken = Duration::from_secs;
        pace.worked(begin, at(1), || taken(1));
        assert_eq!(pace.rest(at(1)), Duration::from_secs(3));
        // What it waits for others is rest as well.
        assert_eq!(pace.rest(at(3)), Duration::from_secs(1));
        assert_eq!(pace.rest(at(9)), Duration::ZERO);
        assert_eq!(pace.speed(1000), 250);
        // A second of work, and one and a half of the protocol's.
        pace.worked(at(9), at(10), || taken(1) + Duration::from_millis(2500));
        assert_eq!(pace.rest(at(10)), Duration::from_secs(9));
        let mut all = Pace::new(1.0);
        all.worked(begin, at(1), || unreachable!("it is not asked"));
        assert_eq!(all.rest(at(1)), Duration::ZERO);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_thread_starts_keeps_to_its_cores() {
        let cores = || std::thread::available_parallelism().map_or(0, |cores| cores.get());
        let kept = std::thread::spawn(move || {
            keep_to_cores(1).expect("it may");
            std::thread::spawn(cores).join().expect("no panic")
        });
        assert_eq!(kept.join().expect("no panic"), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_what_computes_stands_back() {
        // SAFETY: asks for a number of this thread.
        let niceness = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = niceness();
        let nice = std::thread::spawn(move || {
            be_nice(19);
            std::thread::spawn(niceness).join().expect("no panic")
        });
        assert_eq!((nice.join().expect("no panic"), niceness()), (19, before));
    }
}
