//! How long a peer waits where nothing that it has measured can tell.

use std::time::Duration;

/// A peer waits this long for others before it does without them. Measured deadlines are another matter: see
/// [`Detector`](crate::detector::Detector).
///
/// Each peer chooses for itself. All defaults are guesses: 30 s is about the time to start a machine again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// How long the run waits for optimizer moments that no member keeps, before it resets them to zero; 30 s.
    pub lost_moments: Duration,
    /// In a split run: how long this peer waits for parts of the model that no member holds, before it agrees to go
    /// back to an older checkpoint; 30 s.
    pub lost_weights: Duration,
    /// In a split run: how long a run that cannot train waits for members that still fetch parts, before it checks
    /// whether they are gone; 30 s.
    pub fetching: Duration,
    /// How long a contributor waits for full members without a link to it, before it checks whether they are gone;
    /// 30 s.
    pub full_members: Duration,
    /// How long a leaving member waits for others to take over its parts, before it leaves them behind; 30 s.
    pub handover: Duration,
    /// How long a member that is done stays for others than full members, whatever they ask for. Time to fetch the result by
    /// a line of some megabits per second, and not so long that a stranger could hold anybody; 60 s.
    pub guests: Duration,
    /// How many deadlines for an answer, of a second or more, a peer with a whole state sees nobody, before it
    /// continues the run alone; 8.
    pub alone_deadlines: u32,
}

impl Default for Waits {
    fn default() -> Self {
        let restart = Duration::from_secs(30);
        Self {
            lost_moments: restart,
            lost_weights: restart,
            fetching: restart,
            full_members: restart,
            handover: restart,
            guests: Duration::from_secs(60),
            alone_deadlines: 8,
        }
    }
}

impl Waits {
    /// The defaults in tenths, for tests of processes: `scaled(1)` is a tenth of each.
    ///
    /// ```
    /// # use annulus_core::Waits;
    /// assert_eq!(Waits::scaled(10), Waits::default());
    /// assert_eq!(Waits::scaled(1).lost_weights.as_secs(), 3);
    /// ```
    pub fn scaled(tenths: u32) -> Self {
        let all = Self::default();
        let scale = |wait: Duration| wait * tenths / 10;
        Self {
            lost_moments: scale(all.lost_moments),
            lost_weights: scale(all.lost_weights),
            fetching: scale(all.fetching),
            full_members: scale(all.full_members),
            handover: scale(all.handover),
            guests: scale(all.guests),
            // On a busy machine fewer would part peers that see each other a moment later.
            alone_deadlines: (all.alone_deadlines * tenths).div_ceil(10).max(4),
        }
    }
}
