//! Decides between an old link of a peer and a new connection from it. It only compares; it probes and closes nothing.

/// The acceptor's answer to a good hello from a peer that it already has a link with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The old link is dead on the other side: take the new connection.
    Replace,
    /// Both may have dialled at once: keep the old link if it still answers.
    Probe,
    /// The peer was started again, or runs twice. If the old link still answers, it runs twice.
    Doubt,
}

/// Decides which. A peer dials only while it has no link with us, so either it has lost the old one, or its dial
/// crossed ours. The latter is possible only if our dial made the old link and we are the smaller peer: the smaller
/// one's hello is never kept waiting, the larger one's is. Another instance is
/// another process, whose predecessor must be gone.
pub(super) fn judge(old_dialled_by_us: bool, same_instance: bool, we_are_smaller: bool) -> Verdict {
    match same_instance {
        false => Verdict::Doubt,
        true if old_dialled_by_us && we_are_smaller => Verdict::Probe,
        true => Verdict::Replace,
    }
}
