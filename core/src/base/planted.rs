//! Bugs that can be switched on, to prove that the simulation finds them. Real builds cannot have them: without the
//! feature `sim` the switch does not exist.

/// One-line mistakes. Each was once made, or easily could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A member told of a commit applies the record without fetching the pieces that it lacks.
    CommitWithoutRepair,
    /// A dead member's samples are counted instead of handed out again.
    CountTheDead,
    /// Suspects told by others are not merged with one's own.
    KeepSuspectsApart,
    /// A chunk's owner applies its exact sum, the others the encoded one.
    OwnerSkipsDecoding,
    /// Finished pieces are added in the order of arrival, not in the plan's order.
    SumAsTheyCome,
    /// A decision or commit is accepted from a suspected peer too.
    TrustSuspects,
    /// A peer that was excluded does not tell those who still wait for it.
    ExcludedStaysSilent,
    /// A flush that excludes a peer does not make it a newcomer.
    IgnoreExclusion,
    /// After a flush was sent, pieces that still arrive may complete the attempt.
    FlushDoesNotFreeze,
    /// A peer that has committed takes part in the flush of that round as if it had not.
    CommittedFlushes,
    /// A newcomer enters without comparing its digest with its sponsor's.
    JoinUnchecked,
    /// A peer whose digest differs from the majority's goes on.
    IgnoreDivergence,
    /// In a run of two, one member does not check whether its state has changed by itself.
    BelieveOneself,
    /// A contribution computed ahead covers this round's share again, not the next round's.
    AheadOfNothing,
    /// A member that was admitted again keeps the moments of its old local steps.
    MomentsOutliveMembership,
    /// A member repeats, with the others, the steps that it has already taken ahead.
    FirstStepsTwice,
    /// A member uses its own clock where the times that all have announced count.
    PaceByOwnClock,
    /// A member uses its own clock where all count how long rounds take.
    RateByOwnClock,
    /// A newcomer with which the run is slower stays a member.
    KeepWhoSlows,
    /// A sponsor names a newcomer that stands aside before its time.
    NameAside,
    /// When somebody leaves, newcomers fail their trial.
    BlameNewcomers,
    /// The rounding error is added to a contribution again for each attempt.
    FeedTwice,
    /// One member adds its rounding error to the shared parameters.
    FeedbackIntoState,
    /// A member applies the optimizer to tensors that follow a mean.
    OptimizeMeans,
    /// An owner forgets the rounding error of the sum that it finishes.
    OwnersRoundingForgotten,
    /// A member rounds moments by something that it alone knows.
    RoundByPlace,
    /// A member that keeps a part uses its own result as the part's update, before the other keepers hold the sum.
    CommitBeforeHeld,
    /// The first keeper, which adds up the contributions, publishes the update at once and passes the sum on beside
    /// it.
    UpdateBeforeKeepers,
    /// A keeper forgets the sums that it holds once it has stopped the attempt.
    ForgetHeldSums,
    /// No one checks whether other members hold the parts that a member drops or leaves behind.
    DropLastCopy,
    /// A keeper publishes an update that does not follow from the sum.
    FalseUpdates,
    /// In a split run, a member commits once it holds the sums of its own parts, before the others have said that
    /// they hold theirs.
    SplitCommitBeforeHeld,
    /// In a split run, gradients are added in the order of arrival, not in the order of steps and lanes.
    LanesAsTheyCome,
    /// A tensor is dropped once it was sent, not kept until the round is committed.
    DropStash,
    /// A microbatch's gradient is added a second time when it is computed again.
    CountTwice,
    /// The members give up an attempt that somebody may have committed, although those left could commit it.
    GiveUpHeld,
    /// A peer that was excluded from an attempt which others may commit forgets the sums that it holds.
    ForgetPending,
    /// In a split run, a member does not check the parts that it computes with, steps and hands out for changes.
    BelieveParts,
    /// In a split run, a member gives its word before it holds its sums, and commits once it has all words.
    WordBeforeSums,
    /// In a split run, a tensor is accepted whatever round it was made for.
    TakeAnyTensor,
    /// In a split run, parts that nobody keeps any more are restored from disk, whatever round they are of.
    RestoreAny,
    /// In a split run, a new partition takes effect before the holders of its spans have their parts.
    CutAtOnce,
    /// Contributors go on without a full member.
    GuestsGoOn,
    /// A contributor's share follows from its own word.
    TrustGuests,
    /// No full member checks the work of contributors.
    NoSpotChecks,
    /// A contributor's work is checked with the parameters of when the device is asked.
    CheckWithLaterState,
    /// Contributors compute some of the samples that end the run.
    GuestsEnd,
    /// Contributors finish chunks although a full member is there.
    GuestsOwn,
    /// The word of any peer ends a run early.
    AnyoneStops,
    /// Signatures of flushes are not checked.
    TrustFlushes,
    /// Proofs of decisions are not checked.
    TrustDecisions,
    /// Signatures of headers are not checked on arrival.
    TrustHeaders,
    /// Signatures of the headers in a reported commit are not checked.
    TrustCommits,
    /// A newcomer's own statement that it is ready is not checked.
    TrustSponsors,
    /// The issuer of a revocation is not checked.
    TrustRevocations,
    /// A peer that goes over to another lineage forgets the revocations that its own knew.
    MergeForgetsRevocations,
    /// When too many tickets were revoked, those with the largest names are forgotten, whoever revoked them.
    DropRevocationsByName,
    /// Where lineages meet, former members whose tickets were revoked count.
    HeedRevoked,
    /// A peer that one member bars does not try another member.
    HeedWhoBars,
    /// Signatures of relayed frames are not checked.
    TrustRelays,
    /// Proofs of misbehaviour are not checked.
    TrustProofs,
    /// A lineage that a peer shows is believed without its members' signatures.
    TrustClaims,
    /// A peer that was excluded from a round becomes a member of it again if its sponsor says so.
    ComeBackTooSoon,
    /// A relayed frame is accepted each time it arrives.
    TakeAgain,
    /// A guest's conviction bars a ticket that many share.
    BarsShared,
    /// Strikes against guests count by name.
    StrikesByName,
    /// The wait of a ticket with strikes has no cap.
    WaitWithoutEnd,
    /// One ticket may hold all places of guests and of followers.
    NoShares,
    /// A peer that has said two contradictory things is not cut off.
    Forgive,
    /// The hashes of all headers are not compared.
    CompareNothing,
    /// A finished chunk is not compared with what its owner has signed.
    TrustSeals,
    /// Members whose states differ do not show each other what owners have signed.
    CompareNoSeals,
    /// More samples are counted than were allotted.
    CountAboveShare,
    /// Every record is accepted after every head.
    CheckNothing,
    /// Messages that come too early are held without a bound.
    HoldWithoutEnd,
    /// No mistake but a lie: an owner's sums are this `f32`, by its bits. Not one of [`Self::all`].
    AnySum(u32),
}

impl Bug {
    /// Bugs that faults bring to light.
    pub const OF_FAULTS: [Self; 38] = [
        Self::CommitWithoutRepair,
        Self::CountTheDead,
        Self::KeepSuspectsApart,
        Self::OwnerSkipsDecoding,
        Self::SumAsTheyCome,
        Self::TrustSuspects,
        Self::ExcludedStaysSilent,
        Self::IgnoreExclusion,
        Self::FlushDoesNotFreeze,
        Self::CommittedFlushes,
        Self::JoinUnchecked,
        Self::IgnoreDivergence,
        Self::BelieveOneself,
        Self::MomentsOutliveMembership,
        Self::FirstStepsTwice,
        Self::AheadOfNothing,
        Self::FeedTwice,
        Self::PaceByOwnClock,
        Self::RateByOwnClock,
        Self::KeepWhoSlows,
        Self::NameAside,
        Self::FeedbackIntoState,
        Self::OptimizeMeans,
        Self::OwnersRoundingForgotten,
        Self::RoundByPlace,
        Self::GuestsGoOn,
        Self::TrustGuests,
        Self::GuestsEnd,
        Self::CheckWithLaterState,
        Self::AnyoneStops,
        Self::MergeForgetsRevocations,
        Self::DropRevocationsByName,
        Self::HeedRevoked,
        Self::CommitBeforeHeld,
        Self::UpdateBeforeKeepers,
        Self::ForgetHeldSums,
        Self::DropLastCopy,
        Self::FalseUpdates,
    ];

    /// Those of [`Self::OF_FAULTS`] that matter only where members keep parts of the moments.
    pub const OF_KEEPERS: [Self; 5] = [
        Self::CommitBeforeHeld,
        Self::UpdateBeforeKeepers,
        Self::ForgetHeldSums,
        Self::DropLastCopy,
        Self::FalseUpdates,
    ];

    /// Bugs that matter only where a model is split over members.
    pub const OF_SPANS: [Self; 10] = [
        Self::SplitCommitBeforeHeld,
        Self::LanesAsTheyCome,
        Self::DropStash,
        Self::CountTwice,
        Self::GiveUpHeld,
        Self::ForgetPending,
        Self::BelieveParts,
        Self::WordBeforeSums,
        Self::RestoreAny,
        Self::CutAtOnce,
    ];

    /// Bugs that only a liar exploits.
    pub const OF_LIARS: [Self; 26] = [
        Self::TrustFlushes,
        Self::TrustDecisions,
        Self::TrustHeaders,
        Self::TrustCommits,
        Self::TrustSponsors,
        Self::TrustRevocations,
        Self::HeedWhoBars,
        Self::TrustRelays,
        Self::TrustProofs,
        Self::TrustClaims,
        Self::ComeBackTooSoon,
        Self::TakeAgain,
        Self::BarsShared,
        Self::StrikesByName,
        Self::WaitWithoutEnd,
        Self::NoShares,
        Self::NoSpotChecks,
        Self::BlameNewcomers,
        Self::GuestsOwn,
        Self::Forgive,
        Self::CompareNothing,
        Self::TrustSeals,
        Self::CompareNoSeals,
        Self::CountAboveShare,
        Self::CheckNothing,
        Self::HoldWithoutEnd,
    ];

    /// Those of [`Self::OF_LIARS`] that matter only where many share a ticket.
    pub const OF_PAGES: [Self; 4] = [
        Self::BarsShared,
        Self::StrikesByName,
        Self::WaitWithoutEnd,
        Self::NoShares,
    ];

    /// Bugs that only a liar exploits that holds some of a split model.
    pub const OF_LYING_HOLDERS: [Self; 1] = [Self::TakeAnyTensor];

    /// All mistakes.
    pub fn all() -> impl Iterator<Item = Self> {
        let honest = Self::OF_FAULTS.into_iter().chain(Self::OF_SPANS);
        honest.chain(Self::OF_LIARS).chain(Self::OF_LYING_HOLDERS)
    }
}

#[cfg(feature = "sim")]
thread_local! {
    static HERE: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches a mistake on in what all derive from the records, for the world that runs on this thread.
#[cfg(feature = "sim")]
pub(crate) fn plant(bug: Option<Bug>) {
    HERE.set(bug);
}

/// Whether what all derive from the records has this mistake.
#[cfg(feature = "sim")]
pub(crate) fn here(bug: Bug) -> bool {
    HERE.get() == Some(bug)
}

/// Real builds have none.
#[cfg(not(feature = "sim"))]
pub(crate) fn here(_: Bug) -> bool {
    false
}
