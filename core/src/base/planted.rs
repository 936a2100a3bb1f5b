//! Bugs that can be switched on to prove that the simulation finds them. Off in every real build:
//! without the feature `sim` the switch does not exist.

/// One-line mistakes, each of which once was or easily could be made.
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
    /// What comes of a sum is added in the order in which it comes, not in the plan's.
    SumAsTheyCome,
    /// A decision or commit is taken also from a suspected peer.
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
    /// One of two members does not look whether its state is what it was.
    BelieveOneself,
    /// What is computed ahead is not the next round's share, but this one's again.
    AheadOfNothing,
    /// The moments of local steps are not begun anew with a membership.
    MomentsOutliveMembership,
    /// The steps that a member has taken ahead it takes once more with the others.
    FirstStepsTwice,
    /// A member goes by its own clock where what all have told counts.
    PaceByOwnClock,
    /// The same where it counts how long rounds take.
    RateByOwnClock,
    /// A newcomer with which the run is slower stays a member.
    KeepWhoSlows,
    /// A sponsor names a newcomer that stands aside before its time.
    NameAside,
    /// What rounding has taken is added to a contribution again for each attempt.
    FeedTwice,
    /// What rounding has taken is added to the shared parameters, on one member.
    FeedbackIntoState,
    /// An owner does not keep what rounding takes from the sum that it finishes.
    OwnersRoundingForgotten,
    /// A member rounds moments by what it alone knows.
    RoundByPlace,
    /// A member that keeps a part takes what it makes of the sum itself for the part's update, before the other keepers hold the
    /// sum.
    CommitBeforeHeld,
    /// Who adds up the contributions to a part lets the update out at once, and hands the sum on beside it.
    UpdateBeforeKeepers,
    /// A keeper forgets the sums that it holds once it has stopped the attempt.
    ForgetHeldSums,
    /// Nobody looks whether others keep what who leaves or drops a part has kept.
    DropLastCopy,
    /// A keeper lets out an update that is not what the sum gives.
    FalseUpdates,
    /// Where a model is split, who holds the sums of its own parts commits before the others have said that they hold theirs.
    SplitCommitBeforeHeld,
    /// There, what comes of a sum is added in the order in which it comes, not in that of steps and lanes.
    LanesAsTheyCome,
    /// A tensor is let go of once it was sent, and not kept until the round is committed.
    DropStash,
    /// The gradient of a microbatch is added once more when it is computed again.
    CountTwice,
    /// An attempt that somebody may have committed is given up although all that are left could commit it.
    GiveUpHeld,
    /// Who is excluded from an attempt that others may commit forgets the sums that it holds.
    ForgetPending,
    /// Where a model is split: a member does not look whether what it computes with, steps and hands out is what it was.
    BelieveParts,
    /// There, a member gives its word before it holds its sums, and commits by all words.
    WordBeforeSums,
    /// There, a tensor is taken whatever round it was made for.
    TakeAnyTensor,
    /// There, parts that nobody keeps any more are taken from disk as they were after whatever round.
    RestoreAny,
    /// There, another cut is in force before those who hold its spans have their parts.
    CutAtOnce,
    /// Contributors go on without a full member.
    GuestsGoOn,
    /// Nobody looks whether a flush is signed.
    TrustFlushes,
    /// Nobody looks whether a decision is proven.
    TrustDecisions,
    /// Nobody looks whether a header is signed when it comes.
    TrustHeaders,
    /// Nobody looks whether the headers of a commit that is told are signed.
    TrustCommits,
    /// Nobody looks whether a newcomer has said itself that it is ready.
    TrustSponsors,
    /// Nobody looks whether a revocation is signed by who may.
    TrustRevocations,
    /// Who is not let in by one member looks for no other.
    HeedWhoBars,
    /// Nobody looks whether a relayed frame is signed.
    TrustRelays,
    /// Nobody looks whether what is said to convict somebody does.
    TrustProofs,
    /// Nobody looks whether members have signed for the lineage that is shown in their name.
    TrustClaims,
    /// Who was excluded from a round becomes a member of it again if its sponsor says so.
    ComeBackTooSoon,
    /// A relayed frame is taken as often as it comes.
    TakeAgain,
    /// Nobody is cut off for having said two things.
    Forgive,
    /// Nobody compares the hashes of all headers.
    CompareNothing,
    /// Nobody looks whether a finished chunk is what its owner has signed.
    TrustSeals,
    /// Whose states differ do not show each other what owners have signed.
    CompareNoSeals,
    /// More samples are counted than were given.
    CountAboveShare,
    /// Any record follows any head.
    CheckNothing,
    /// What comes too early is held without end.
    HoldWithoutEnd,
}

impl Bug {
    /// Those that faults bring to light.
    pub const OF_FAULTS: [Self; 30] = [
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
        Self::OwnersRoundingForgotten,
        Self::RoundByPlace,
        Self::GuestsGoOn,
        Self::CommitBeforeHeld,
        Self::UpdateBeforeKeepers,
        Self::ForgetHeldSums,
        Self::DropLastCopy,
        Self::FalseUpdates,
    ];

    /// Those of them that only matter where members keep parts of the moments.
    pub const OF_KEEPERS: [Self; 5] = [
        Self::CommitBeforeHeld,
        Self::UpdateBeforeKeepers,
        Self::ForgetHeldSums,
        Self::DropLastCopy,
        Self::FalseUpdates,
    ];

    /// Those that only matter where a model is split over members.
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

    /// Those that only a liar makes use of.
    pub const OF_LIARS: [Self; 19] = [
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
        Self::Forgive,
        Self::CompareNothing,
        Self::TrustSeals,
        Self::CompareNoSeals,
        Self::CountAboveShare,
        Self::CheckNothing,
        Self::HoldWithoutEnd,
    ];

    /// Those that only a liar makes use of that holds some of a model.
    pub const OF_LYING_HOLDERS: [Self; 1] = [Self::TakeAnyTensor];
}
