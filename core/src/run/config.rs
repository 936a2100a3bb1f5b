//! The run's manifest, equal on all peers, and each peer's own settings.

mod members;

use crate::access::invitation::Root;
use crate::base::id::{Digest, PeerId, RunId};
use crate::numeric::codec::Codec;
use crate::numeric::optim::{LocalSteps, Moments, Optimizer, Schedule};
pub use crate::run::settings::Settings;
use crate::run::split::Split;
pub use crate::run::waits::Waits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::str::FromStr;

/// One parameter tensor's place in the flat vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Path in the model, such as `layer1.weight`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Position of its first element in the flat vector.
    pub offset: usize,
    /// How a round changes it.
    pub rule: TensorRule,
}

/// How a round changes a tensor. All rules act on each element alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TensorRule {
    /// The optimizer steps it, without weight decay: biases and norms.
    Step,
    /// The optimizer steps it, with weight decay.
    StepAndDecay,
    /// It follows a statistic of the batch, as batch norm's running mean and variance do. A contribution holds
    /// samples times (statistic - value), summed and divided like a gradient. The round adds `rate` times this mean.
    /// Optimizer, clipping and weight decay leave the tensor alone.
    ///
    /// A lossy codec scales a block of elements together: put such tensors behind the trained ones. The value may
    /// be off by what the codec rounds, so clamp variances at 0 where you read them.
    Mean {
        /// Share of the way to the statistic, above 0 and at most 1; `momentum` in PyTorch's batch norm.
        rate: f32,
    },
}

impl TensorSpec {
    /// Elements of the tensor.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The places of the model's parameters in the flat vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Tensors in visiting order, without gaps.
    pub tensors: Vec<TensorSpec>,
    /// Elements of the flat vector.
    pub len: usize,
}

impl Layout {
    /// A layout of one tensor, for vectors without a model.
    pub fn flat(len: usize) -> Self {
        let tensor = TensorSpec {
            name: "vector".into(),
            shape: vec![len],
            offset: 0,
            rule: TensorRule::StepAndDecay,
        };
        Self {
            tensors: vec![tensor],
            len,
        }
    }

    /// The elements with [`TensorRule::Mean`], in order, as few ranges as possible. Norms leave them out.
    pub fn means(&self) -> Vec<Range<usize>> {
        let mut means: Vec<Range<usize>> = Vec::new();
        for tensor in &self.tensors {
            let end = tensor.offset + tensor.len();
            match means.last_mut() {
                _ if !matches!(tensor.rule, TensorRule::Mean { .. }) => {}
                Some(last) if last.end == tensor.offset => last.end = end,
                _ => means.push(tensor.offset..end),
            }
        }
        means
    }
}

/// How an all-reduce routes its pieces: see [`Plan`](crate::collective::Plan). Written and read as `ring` and
/// `direct`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Each member sends to the next member only: 2(n-1) one-way delays, two links for each member.
    #[default]
    Ring,
    /// Each member owns a share of the vector, receives all contributions to it and sends its sum to all: 2 one-way
    /// delays, a link between any two. This is a parameter server spread over all members, as in BytePS.
    Direct,
}

impl Topology {
    /// All topologies.
    pub const ALL: [Self; 2] = [Self::Ring, Self::Direct];
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ring => "ring",
            Self::Direct => "direct",
        })
    }
}

/// This topology does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no topology is called \"{0}\": use one of ring, direct")]
pub struct UnknownTopology(pub String);

impl FromStr for Topology {
    type Err = UnknownTopology;

    fn from_str(name: &str) -> Result<Self, UnknownTopology> {
        let found = Self::ALL
            .into_iter()
            .find(|topology| topology.to_string() == name);
        found.ok_or_else(|| UnknownTopology(name.to_owned()))
    }
}

/// The origin of a run's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataSource {
    /// The task generates it, the same on every peer.
    Made,
    /// The founder has it in files. A peer without them fetches them from another peer, or gets a copy by hand.
    Given {
        /// Hash of the list of files with their lengths and hashes, so that a peer can check a fetch as it arrives.
        files: Digest,
    },
}

/// When a run ends before its last sample: once most full members have seen that the model gains nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyStop {
    /// Rounds from one evaluation to the next.
    pub every: NonZeroU32,
    /// Evaluations in a row without a lower loss than before.
    pub patience: NonZeroU32,
}

/// The definition of a run. Immutable; its hash is the [`RunId`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Public half of the run's key, the root of every right to take part.
    pub key: PeerId,
    /// What is trained, in a few words for people. Empty: nobody said.
    pub title: String,
    /// What for and by whom, in a few sentences. Empty: nobody said.
    pub about: String,
    /// Name of the task, such as `digits`.
    pub task: String,
    /// The task's own configuration as JSON text, exactly as all peers read it.
    pub task_config: String,
    /// Seed of initial parameters and of the order of samples.
    pub seed: u64,
    /// Samples in the training set.
    pub samples: NonZeroU64,
    /// Hash of the training data.
    pub data: Digest,
    /// Where the training data comes from.
    pub data_source: DataSource,
    /// Samples after which the run ends (epochs times samples, or rounds times batch).
    pub target: NonZeroU64,
    /// When the run ends before that. `None`: never.
    pub early_stop: Option<EarlyStop>,
    /// Samples of one step, over all peers. Without [local steps](Self::local), a round is one step.
    pub batch: NonZeroU32,
    /// Samples of neighbouring places in the data that are visited in the same part of an epoch
    /// ([`shuffle`](crate::shuffle)). 1: any sample comes anywhere.
    pub chunk: NonZeroU32,
    /// Chunks from which each batch takes samples: more mix better, and at most a batch.
    pub stripes: NonZeroU16,
    /// Samples that a device computes at once; 0 means its whole share.
    pub micro_batch: u32,
    /// The places of the parameters.
    pub layout: Layout,
    /// The optimizer that applies gradients to parameters.
    pub optimizer: Optimizer,
    /// The precision of its vectors between two steps.
    pub moments: Moments,
    /// Base learning rate.
    pub lr: f32,
    /// The learning rate over the steps.
    pub schedule: Schedule,
    /// Largest global norm of the mean gradient.
    pub clip: Option<f32>,
    /// Set if members take local steps between two exchanges. Then optimizer, rate and clipping are those of the
    /// local steps.
    pub local: Option<LocalSteps>,
    /// With local steps: whether members take the first steps of the next round while the sums of this one travel.
    pub overlap: bool,
    /// The encoding of chunks on the wire.
    pub codec: Codec,
    /// The topology; `None` lets [`Pace`](crate::ledger::pace::Pace) choose the faster one.
    pub topology: Option<Topology>,
    /// Elements of one piece of a chunk.
    pub piece: NonZeroU32,
    /// The run waits while it has fewer members than this.
    pub min_peers: NonZeroU16,
    /// Whether a newcomer with which the run would be slower stands aside
    /// ([`ledger::aside`](crate::ledger::aside)).
    pub stand_aside: bool,
    /// The number of members that keep the optimizer's vectors of each part of the parameters, as in ZeRO-1.
    /// `None`: every member keeps all.
    pub copies: Option<NonZeroU16>,
    /// How the model is cut over its members. A keeper of a part then keeps its weights too. `None`: every member
    /// has all weights.
    pub split: Option<Split>,
}

/// Why a manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Its version is not [`Manifest::VERSION`].
    #[error(
        "the run's manifest is of version {found}, and this program reads version {reads}: use a program of the \
         version that began the run, or begin another run",
        reads = Manifest::VERSION
    )]
    Version {
        /// The version that it has.
        found: u8,
    },
    /// It does not begin like a manifest. It was made before manifests had versions, or is something else.
    #[error(
        "the run's manifest names no version, as those of the first programs did not, and this program reads \
         version {reads}: use a program of the version that began the run, or begin another run",
        reads = Manifest::VERSION
    )]
    NoVersion,
    /// Its settings are wrong or contradict each other.
    #[error("the run's manifest is not usable: {0}")]
    Unusable(&'static str),
}

/// The first bytes of an encoded manifest, before its version.
const MARK: &[u8] = b"annrun\0";

impl Manifest {
    /// Version of the encoding. Every change of the fields needs a new version.
    pub const VERSION: u8 = 12;

    /// A run of one sample with these parameters, as a base for a caller that sets only some fields: `Manifest {
    /// lr: 0.1, ..Manifest::new(layout) }`.
    pub fn new(layout: Layout) -> Self {
        Self {
            key: PeerId([0; 32]),
            title: String::new(),
            about: String::new(),
            task: String::new(),
            task_config: String::new(),
            seed: 0,
            samples: NonZeroU64::MIN,
            data: Digest([0; 32]),
            data_source: DataSource::Made,
            target: NonZeroU64::MIN,
            early_stop: None,
            batch: NonZeroU32::MIN,
            chunk: NonZeroU32::MIN,
            stripes: NonZeroU16::MIN,
            micro_batch: 0,
            layout,
            optimizer: Optimizer::Sgd { weight_decay: 0.0 },
            moments: Moments::F32,
            lr: 0.01,
            schedule: Schedule::Constant,
            clip: None,
            local: None,
            overlap: false,
            codec: Codec::F32,
            topology: Some(Topology::Ring),
            piece: Self::PIECE,
            min_peers: NonZeroU16::MIN,
            stand_aside: false,
            copies: None,
            split: None,
        }
    }

    /// The longest [title](Self::title), in characters: a line of a page.
    pub const TITLE_LIMIT: usize = 80;
    /// The longest [text about it](Self::about), in characters: a paragraph.
    pub const ABOUT_LIMIT: usize = 500;
    /// The largest encoded manifest, in bytes.
    pub const SIZE_LIMIT: usize = 1 << 20;
    /// Default elements per piece: 64 KiB of f32, 5 ms at 100 Mbit/s, so that a ring's pipeline fills early.
    pub const PIECE: NonZeroU32 = NonZeroU32::new(16 * 1024).unwrap();

    /// Elements of one block, the unit in which a newcomer fetches the state: four pieces, but no more than four of
    /// the default length, so that a block with all optimizer slots stays below 1 MiB.
    pub fn block(&self) -> usize {
        4 * self.piece.min(Self::PIECE).get() as usize
    }

    /// Whether newcomers have trials. If members keep parts of the state, a keeper cannot stand aside.
    pub fn tries_newcomers(&self) -> bool {
        self.stand_aside && self.copies.is_none() && self.split.is_none()
    }

    /// Whether a round of this many members trains. Otherwise it only changes the membership.
    pub fn trains(&self, members: usize) -> bool {
        members >= usize::from(self.min_peers.get())
    }

    /// The most samples that a round hands out.
    pub fn most_samples(&self) -> u64 {
        let most = |local: &LocalSteps| local.steps.map_or(LocalSteps::MOST, NonZeroU32::get);
        u64::from(self.batch.get()) * u64::from(self.local.as_ref().map_or(1, most))
    }

    /// The optimizer that applies a round's sum to the shared state, and its base rate.
    pub fn shared_optimizer(&self) -> (&Optimizer, f32) {
        match &self.local {
            None => (&self.optimizer, self.lr),
            Some(local) => (&local.outer, local.outer_lr),
        }
    }

    /// Bytes of the state that every member holds: the parameters and, unless members keep [parts](Self::copies) of
    /// them, the optimizer's vectors. 0 if the model is [split](Self::split).
    pub fn state_bytes(&self) -> u64 {
        if self.split.is_some() {
            return 0;
        }
        let moments = if self.copies.is_some() {
            0
        } else {
            self.moments_bytes()
        };
        4 * self.layout.len as u64 + moments
    }

    /// Bytes of all vectors of the optimizer.
    pub fn moments_bytes(&self) -> u64 {
        self.shared_optimizer().0.slots() as u64 * self.moments.bytes(self.layout.len as u64)
    }

    /// Bytes of parameters and optimizer's vectors that one of `members` full members holds, once each has its
    /// parts.
    pub fn member_bytes(&self, members: u64) -> u64 {
        let members = members.max(1);
        let weights = self.split.as_ref().map_or(0, |_| 4 * self.layout.len as u64);
        let kept = self.copies.map_or(0, |copies| {
            (weights + self.moments_bytes()) * u64::from(copies.get()).min(members) / members
        });
        self.state_bytes() + kept
    }

    /// Whether each member adds its rounding errors to its next contribution: see [`Codec::has_feedback`].
    pub fn feedback(&self) -> bool {
        self.codec.has_feedback(self.local.is_some())
    }

    /// Whether members carry on private values: rounding errors, moments of their own or of parts. Then a replay
    /// must start at the beginning of the ledger.
    pub fn is_replayed_from_the_beginning(&self) -> bool {
        self.feedback() || self.local.is_some() || self.copies.is_some()
    }

    /// The run's name.
    pub fn run_id(&self) -> RunId {
        RunId(*blake3::hash(&self.encode()).as_bytes())
    }

    /// The root of every right in the run.
    pub fn root(&self) -> Root {
        Root {
            run: self.run_id(),
            key: self.key,
        }
    }

    /// Encodes it, the same on every platform: a mark, the version, the fields.
    pub fn encode(&self) -> Vec<u8> {
        let front = [MARK, &[Self::VERSION]].concat();
        postcard::to_extend(self, front).expect("a manifest has only plain data")
    }

    /// Reads and checks a manifest, which may come from a stranger.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > Self::SIZE_LIMIT {
            return Err(ManifestError::Unusable("it is larger than 1 MiB"));
        }
        let fields = match bytes.strip_prefix(MARK) {
            Some([Self::VERSION, fields @ ..]) => fields,
            Some([found, ..]) => return Err(ManifestError::Version { found: *found }),
            _ => return Err(ManifestError::NoVersion),
        };
        let manifest: Self =
            postcard::from_bytes(fields).map_err(|_| ManifestError::Unusable("it cannot be decoded"))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that all settings are in range and fit each other.
    pub fn check(&self) -> Result<(), ManifestError> {
        let need = |ok: bool, why| ok.then_some(()).ok_or(ManifestError::Unusable(why));
        self.check_words()?;
        self.check_chunks()?;
        need(
            self.piece.get() <= 1 << 20,
            "piece must be at most 1048576 elements",
        )?;
        need(
            (self.piece.get() as usize).is_multiple_of(self.moments.grain()),
            "with moments=8bit piece must be a multiple of 256",
        )?;
        need(
            self.local.is_none() || self.moments == Moments::F32,
            "moments=8bit is for runs whose every batch is a round, without local steps: their moments are each member's own",
        )?;
        need(
            self.codec != Codec::Sign || self.local.is_some(),
            "codec=sign is for local steps: of a single batch's gradients signs tell too little to learn from",
        )?;
        need(
            !self.overlap || self.local.is_some(),
            "overlap goes with local_steps: gradients of a single batch would be one step late",
        )?;
        self.check_copies()?;
        self.check_split()?;
        need(
            usize::from(self.min_peers.get()) <= MAX_PEERS,
            "min_peers must be at most 64",
        )?;
        need(
            self.lr.is_finite() && self.lr >= 0.0,
            "lr must be a finite number, at least 0",
        )?;
        need(
            self.clip.is_none_or(|c| c.is_finite() && c > 0.0),
            "clip must be greater than 0",
        )?;
        need(
            self.optimizer.check().is_ok(),
            "an optimizer setting is out of its range",
        )?;
        need(
            self.schedule.check().is_ok(),
            "a schedule setting is out of its range",
        )?;
        need(
            self.local.as_ref().is_none_or(|local| local.check().is_ok()),
            "a setting of local steps is out of its range",
        )?;
        let mut end = 0usize;
        for tensor in &self.layout.tensors {
            let len = tensor.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let next = len.and_then(|len| end.checked_add(len));
            need(
                tensor.offset == end && next.is_some(),
                "the tensors do not lie one after the other",
            )?;
            let follows = |rate: f32| rate > 0.0 && rate <= 1.0;
            need(
                !matches!(tensor.rule, TensorRule::Mean { rate } if !follows(rate)),
                "the rate of a tensor that follows a mean must be above 0 and at most 1",
            )?;
            end = next.expect("checked above");
        }
        need(
            end == self.layout.len && end as u64 <= MAX_ELEMENTS,
            "the layout's length is not that of its tensors",
        )
    }
}

/// Most members of a view. A guess: much longer rings need another schedule anyway.
pub const MAX_PEERS: usize = 64;

/// Most members that are not full members: half, so that guests never outnumber the members that keep the run.
pub const MAX_CONTRIBUTORS: usize = MAX_PEERS / 2;

/// Most elements of the flat vector (64 GiB of f32). Keeps index arithmetic far from overflow.
pub const MAX_ELEMENTS: u64 = 1 << 34;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_0_is_not_read_as_0() {
        let one = Manifest {
            piece: NonZeroU32::MIN,
            ..Manifest::new(Layout::flat(3))
        };
        let to_two: [fn(&mut Manifest); 5] = [
            |m| m.samples = 2.try_into().unwrap(),
            |m| m.target = 2.try_into().unwrap(),
            |m| m.batch = 2.try_into().unwrap(),
            |m| m.piece = 2.try_into().unwrap(),
            |m| m.min_peers = 2.try_into().unwrap(),
        ];
        for change in to_two {
            let mut two = one.clone();
            change(&mut two);
            let (one, mut bytes) = (one.encode(), two.encode());
            assert_eq!(Manifest::decode(&bytes), Ok(two));
            // The position of the version's byte.
            let at = (0..one.len()).find(|i| one[*i] != bytes[*i]).unwrap();
            bytes[at] = 0;
            let refused = ManifestError::Unusable("it cannot be decoded");
            assert_eq!(Manifest::decode(&bytes), Err(refused));
        }
    }

    #[test]
    fn what_is_said_of_a_run_fits_a_page_and_a_line() {
        let of = |title: &str, about: &str| Manifest {
            title: title.into(),
            about: about.into(),
            ..Manifest::new(Layout::flat(3))
        };
        let long = |len: usize| "\u{17c}".repeat(len);
        let good = of(&long(80), &long(500));
        assert_eq!(Manifest::decode(&good.encode()), Ok(good.clone()));
        assert_ne!(good.run_id(), of("another", "").run_id());
        for bad in [
            of(&long(81), ""),
            of("", &long(501)),
            of("a\nb", ""),
            of("", "\u{1b}[2J"),
        ] {
            assert!(Manifest::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_manifest_of_another_version_is_refused_by_name() {
        let manifest = Manifest::new(Layout::flat(3));
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest.clone()));
        let mut later = bytes.clone();
        later[MARK.len()] = Manifest::VERSION + 1;
        let error = Manifest::decode(&later).unwrap_err();
        assert_eq!(error, ManifestError::Version { found: 13 });
        let text = error.to_string();
        assert!(
            text.contains("version 13") && text.contains("reads version 12"),
            "{text}"
        );
        // Encoded as before manifests had versions.
        let first = postcard::to_allocvec(&manifest).unwrap();
        assert_eq!(Manifest::decode(&first), Err(ManifestError::NoVersion));
        assert_eq!(Manifest::decode(&[]), Err(ManifestError::NoVersion));
        let cut = &bytes[..bytes.len() - 1];
        assert!(matches!(Manifest::decode(cut), Err(ManifestError::Unusable(_))));
    }

    #[test]
    fn a_mean_is_followed_at_a_rate_from_0_to_1() {
        let with = |rate| {
            let mut manifest = Manifest::new(Layout::flat(3));
            manifest.layout.tensors[0].rule = TensorRule::Mean { rate };
            manifest
        };
        for rate in [f32::MIN_POSITIVE, 0.1, 1.0] {
            let manifest = with(rate);
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
        for rate in [0.0, -0.1, 1.1, f32::NAN, f32::INFINITY] {
            let why = Manifest::decode(&with(rate).encode()).unwrap_err().to_string();
            assert!(why.contains("rate of a tensor"), "{rate}: {why}");
        }
    }

    #[test]
    fn neighbours_that_follow_means_are_one_range() {
        let mean = TensorRule::Mean { rate: 0.1 };
        let rules = [mean, TensorRule::Step, mean, mean, TensorRule::StepAndDecay];
        let tensor = |(i, rule): (usize, &TensorRule)| TensorSpec {
            name: format!("t{i}"),
            shape: vec![2],
            offset: 2 * i,
            rule: *rule,
        };
        let layout = Layout {
            tensors: rules.iter().enumerate().map(tensor).collect(),
            len: 10,
        };
        assert_eq!(layout.means(), [0..2, 4..8]);
        assert_eq!(Layout::flat(4).means(), []);
    }

    #[test]
    fn chunks_and_stripes_keep_within_data_and_batch() {
        let with = |chunk: u32, stripes: u16| Manifest {
            samples: 100.try_into().unwrap(),
            batch: 12.try_into().unwrap(),
            chunk: chunk.try_into().unwrap(),
            stripes: stripes.try_into().unwrap(),
            ..Manifest::new(Layout::flat(3))
        };
        assert_eq!(Manifest::decode(&with(50, 12).encode()), Ok(with(50, 12)));
        for (bad, why) in [
            (with(51, 12), "half of the samples"),
            (with(50, 13), "at most the batch"),
        ] {
            let told = Manifest::decode(&bad.encode()).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn exchange_beside_training_is_only_for_local_steps() {
        let mut manifest = Manifest {
            overlap: true,
            ..Manifest::new(Layout::flat(3))
        };
        let why = manifest.check().unwrap_err().to_string();
        assert!(why.contains("overlap") && why.contains("local_steps"), "{why}");
        manifest.local = Some(LocalSteps::averaged(NonZeroU32::MIN));
        assert_eq!(manifest.check(), Ok(()));
    }

    #[test]
    fn a_model_is_split_only_where_its_rounds_can_be() {
        let step = |start: usize| crate::run::split::Step {
            ranges: std::iter::once(start..start + 4).collect(),
            cost: 1,
            boundary: 2,
        };
        let good = Manifest {
            copies: NonZeroU16::new(2),
            topology: Some(Topology::Direct),
            optimizer: "adam".parse().unwrap(),
            split: Some(Split {
                steps: vec![step(0), step(4)],
                spans: vec![NonZeroU16::MIN; 2],
                micro_batch: NonZeroU32::MIN,
                boundary: Codec::F16,
                lanes: NonZeroU16::MIN,
            }),
            ..Manifest::new(Layout::flat(8))
        };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Manifest::decode(&good.encode()), Ok(good.clone()));
        // No state is held by all, and the holder of a span holds its weights and moments.
        assert_eq!((good.state_bytes(), good.member_bytes(2)), (0, 8 * 12));
        type Change = fn(&mut Manifest);
        let wrong: [(&str, Change); 5] = [
            ("copies", |m| m.copies = None),
            ("codec=f32", |m| m.codec = Codec::Int8),
            ("overlap", |m| m.overlap = true),
            ("topology", |m| m.topology = None),
            ("uses", |m| m.layout = Layout::flat(9)),
        ];
        for (why, change) in wrong {
            let mut manifest = good.clone();
            change(&mut manifest);
            let error = manifest.check().unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
