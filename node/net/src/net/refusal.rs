//! Why a peer refuses another at the handshake: a number on the wire, and a message for people.

use annulus_core::tickets::Barred;

/// Why a peer refused a connection. The number of each is its close code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The ticket was not issued by this run.
    #[error(
        "the ticket is not one of this run: ask someone who takes part for a fresh one and copy it whole"
    )]
    WrongTicket = 0x11,
    /// The peer takes part in another run.
    #[error(
        "that address takes part in another run than the ticket names, perhaps because a new run was \
         started there. Ask for a ticket of the run that you want to join"
    )]
    AnotherRun = 0x12,
    /// The peer speaks another version of the protocol.
    #[error(
        "that peer speaks another version of the protocol. All peers of a run need the same release: \
         compare `annulus --version` on both machines and update the older one"
    )]
    AnotherVersion = 0x13,
    /// The peer has its maximum of links.
    #[error(
        "that peer has as many links as it allows. Try again later, use another peer's address, or \
         raise the limit there"
    )]
    TooManyPeers = 0x14,
    /// The peer has our own identity.
    #[error(
        "the peer at that address has our own identity: either it is this very node, or two nodes were \
         started from one identity file. Give each node an identity of its own"
    )]
    Ourselves = 0x15,
    /// The peer prefers another connection between the two of us.
    #[error(
        "that peer already has a connection with us and keeps that one. Nothing needs to be done: it \
         is either up in a moment, or it will be replaced at the next try"
    )]
    Duplicate = 0x16,
    /// The peer could not parse our handshake.
    #[error(
        "that peer could not make sense of our handshake. Check that both run the same release and \
         that nothing in between alters the traffic"
    )]
    BadHandshake = 0x17,
    /// The handshake took too long.
    #[error("the handshake took too long. The network or one of the machines is overloaded: try again")]
    TooSlow = 0x18,
    /// The ticket has expired.
    #[error("{}", Barred::Expired)]
    Expired = 0x19,
    /// The ticket was revoked.
    #[error("{}", Barred::Revoked)]
    Revoked = 0x1a,
    /// The ticket has no uses left.
    #[error("{}", Barred::UsedUp)]
    UsedUp = 0x1b,
    /// A peer that came with the ticket was convicted of lying.
    #[error("{}", Barred::Convicted)]
    Convicted = 0x1c,
    /// The code is wrong.
    #[error("that is not the code that is shown there: look again, as it changes after a few wrong ones")]
    WrongCode = 0x1d,
    /// The peer takes no code.
    #[error(
        "that peer takes no code now: too many were wrong, or it shows none. Wait for a minute or more and use the code that \
         it shows then, or ask for a ticket"
    )]
    NoCode = 0x1e,
    /// Another peer of the same name takes part.
    #[error("{}", Barred::InUse)]
    InUse = 0x1f,
}

impl From<Barred> for Refusal {
    fn from(barred: Barred) -> Self {
        match barred {
            Barred::Expired => Self::Expired,
            Barred::Revoked => Self::Revoked,
            Barred::UsedUp => Self::UsedUp,
            Barred::Convicted => Self::Convicted,
            Barred::InUse => Self::InUse,
        }
    }
}

impl Refusal {
    /// All refusals.
    pub(crate) const ALL: [Self; 15] = [
        Self::WrongTicket,
        Self::AnotherRun,
        Self::AnotherVersion,
        Self::TooManyPeers,
        Self::Ourselves,
        Self::Duplicate,
        Self::BadHandshake,
        Self::TooSlow,
        Self::Expired,
        Self::Revoked,
        Self::UsedUp,
        Self::Convicted,
        Self::WrongCode,
        Self::NoCode,
        Self::InUse,
    ];

    /// If the ticket is the reason, what is wrong with it.
    pub fn barred(self) -> Option<Barred> {
        match self {
            Self::Expired => Some(Barred::Expired),
            Self::Revoked => Some(Barred::Revoked),
            Self::UsedUp => Some(Barred::UsedUp),
            Self::Convicted => Some(Barred::Convicted),
            Self::InUse => Some(Barred::InUse),
            _ => None,
        }
    }

    /// The close code of this refusal.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The refusal of a close code, if it is one.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|refusal| u64::from(refusal.code()) == code)
    }
}
