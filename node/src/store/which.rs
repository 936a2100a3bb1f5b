//! Which checkpoint of a run's folder a user means.

use annulus_core::Round;
use std::path::Path;
use std::str::FromStr;

/// A checkpoint of a run's folder, as a user names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The newest good one.
    #[default]
    Newest,
    /// The one with the lowest loss on held-out data, of those that were evaluated and are still there.
    Best,
    /// The one after this round.
    After(Round),
}

impl Which {
    /// Why a folder that keeps checkpoints after these rounds does not have it.
    pub fn not_kept(&self, dir: &Path, rounds: &[Round]) -> String {
        let dir = dir.display();
        let rounds: Vec<String> = rounds.iter().map(Round::to_string).collect();
        let rounds = rounds.join(", ");
        match self {
            Self::After(round) => {
                format!(
                    "{dir} keeps no checkpoint after round {round}. It keeps those after {rounds}: choose one by --round"
                )
            }
            _ => format!(
                "{dir} keeps no checkpoint that was evaluated. To have the best kept, train with eval_every=N keep_best=on. \
             It keeps those after {rounds}: choose one by --round"
            ),
        }
    }
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "newest" => Ok(Self::Newest),
            "best" => Ok(Self::Best),
            _ => text
                .parse()
                .map(Self::After)
                .map_err(|_| "write `newest`, `best` or the number of a round".to_owned()),
        }
    }
}
