//! Limits a participant's share of its machine: of the device's time, and of the cores.

use std::time::{Duration, Instant};

/// Makes a device rest, so that it computes only a part of the time.
///
/// It rests before a job, not after one: others wait for the result of a job, while a rest during the exchange costs
/// nobody anything.
#[derive(Debug)]
pub struct Pace {
    power: f64,
    rested_at: Option<Instant>,
    /// The processor time per core when the device had last worked.
    processor: Option<Duration>,
}

impl Pace {
    /// A device that may compute for this fraction of the time.
    pub fn new(power: f64) -> Self {
        Self {
            power,
            rested_at: None,
            processor: None,
        }
    }

    /// How long to rest now.
    pub fn rest(&self, now: Instant) -> Duration {
        self.rested_at
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// The device has worked between two times. `processor` returns the processor time per core at the end; it is
    /// called only if it matters, since it costs a dozen system calls. Time beyond the device's work, for the protocol,
    /// is paid for with rest too.
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

    /// The effective value of a speed that was measured without rest.
    pub fn speed(&self, speed: u64) -> u64 {
        (speed as f64 * self.power) as u64
    }
}

/// This process's time per core that it may use; zero if the system does not report it.
pub fn processor_time() -> Duration {
    #[cfg(unix)]
    {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes one `timespec` that exists.
        if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } == 0 {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
            return Duration::new(time.tv_sec as u64, time.tv_nsec as u32) / cores as u32;
        }
    }
    Duration::ZERO
}

/// Binds this thread, and those that it starts, to this many of its cores.
///
/// # Errors
///
/// If the system refuses.
#[cfg(target_os = "linux")]
pub fn keep_to_cores(count: usize) -> std::io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of cores is plain bits, all of which may be 0. The calls read and write at most one set.
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

/// The system does not support it.
#[cfg(not(target_os = "linux"))]
pub fn keep_to_cores(_count: usize) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Lowers the priority of this thread, and of those that it starts. Does nothing if the system refuses.
#[cfg(target_os = "linux")]
pub fn be_nice(niceness: u8) {
    // SAFETY: sets a number of this thread, which 0 stands for on Linux. Nothing is read or written.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness.into()) };
}

/// Here niceness would affect the whole process, which others wait for.
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
        // Waiting for others counts as rest.
        assert_eq!(pace.rest(at(3)), Duration::from_secs(1));
        assert_eq!(pace.rest(at(9)), Duration::ZERO);
        assert_eq!(pace.speed(1000), 250);
        // A second of work, and one and a half for the protocol.
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
        // SAFETY: reads a number of this thread.
        let niceness = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = niceness();
        let nice = std::thread::spawn(move || {
            be_nice(19);
            std::thread::spawn(niceness).join().expect("no panic")
        });
        assert_eq!((nice.join().expect("no panic"), niceness()), (19, before));
    }
}
