//! Messages between peers: their encoding and their limits. A frame is
//! `[u32 length of meta][meta: postcard][payload]`; the payload (a piece, a block) is never copied here.
//!
//! Hostile input is an error: every length is checked before anything of that length is allocated.

mod said;
mod stopping;

pub use self::said::{Doing, Leg};
use crate::access::invitation::{Admission, Revocation};
use crate::access::signature::{Signature, Signed};
pub use crate::base::id::ViewKey;
use crate::base::id::{Contact, Digest, PeerId, Round};
use crate::ledger::admission::MAX_NAMED;
pub use crate::ledger::claim::{Claim, Standing};
use crate::ledger::conviction::{Contradiction, Conviction};
use crate::ledger::fork::FORKS;
use crate::ledger::seal::Seal;
use crate::ledger::tickets::Barred;
use crate::ledger::{Head, Header, Member, Newcomer, Ready, Record};
use crate::run::config::MAX_PEERS;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Version of the messages and of all that is in them. Peers of another version are refused by the first word of the
/// handshake. Another field is another version, and so is another rule by which members find out who computes what.
pub const VERSION: u16 = 19;

/// Most bytes of a frame's meta part. Fits a full view's headers with contacts.
pub const META_LIMIT: usize = 1 << 20;

/// Most bytes of a frame's payload.
pub const PAYLOAD_LIMIT: usize = 8 << 20;

// What else others can make grow, and how far: early pieces, two vectors and 128 KiB from all together, strangers' first
// to go (`early.rs`); followers, 64 (`sponsor.rs`); newcomers in a header, 8 (`admission.rs`); what is given on request,
// four states and vectors and 1 MiB to each within the time of an answer (`allowance.rs`); peers of which anything is
// remembered, 128 contacts (`links.rs`) and 256 of all else (`shared.rs`, `conviction.rs`); numbers of relayed frames,
// 4,096 of each of 128 authors (`relayed.rs`); frames that wait for a relay's word, 1,024
// hashes (`links.rs`); aborted attempts of a round, 64 (`agreement.rs`); what owners have signed in the last three rounds
// (`seal.rs`). `Peer::buffered_bytes` counts all of it.

/// Which of a link's two ordered streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// Small and urgent.
    Control,
    /// Pieces and blocks.
    Bulk,
}

/// Around a frame that somebody passes on for its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Who wrote the frame.
    pub from: PeerId,
    /// Who it is for.
    pub to: PeerId,
    /// The author's number of it. No two frames of an author have the same, in all its lives.
    pub number: u64,
    /// The stream that it is for, all the way. Not signed, since whoever passes it on may be late anyway.
    pub lane: Lane,
    /// Of the author, under all this and the frame.
    pub signature: Signature,
}

/// Everything that peers say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A piece of a chunk, and the headers that its receiver has not been told yet and hears of from the sender.
    Piece {
        /// The attempt.
        view: ViewKey,
        /// Which way.
        leg: Leg,
        /// Whose chunk, as a position in the view.
        chunk: u16,
        /// Which piece of it.
        piece: u32,
        /// Headers: the sender's own, or others' that it passes on.
        headers: Vec<Signed<Header>>,
        /// Hash of what all members' headers say, with the first piece for this receiver after the sender had them all.
        all: Option<Digest>,
        /// The owner's word on the whole chunk, with the last of its finished pieces under a plan in which they come from
        /// the owner alone.
        seal: Option<Box<Seal>>,
        /// Encoded values.
        #[serde(skip)]
        data: Bytes,
    },
    /// Are you there, and what are you doing?
    Probe {
        /// The sender's attempt.
        view: ViewKey,
        /// Comes back in the answer.
        nonce: u32,
    },
    /// Answer to a probe.
    Alive {
        /// Of the probe.
        nonce: u32,
        /// The round in work at the answering peer.
        round: Round,
        /// What it does.
        doing: Doing,
    },
    /// I have stopped this attempt, not committed it, and suspect these.
    Flush {
        /// The attempt.
        view: ViewKey,
        /// Sorted.
        suspects: Vec<PeerId>,
        /// Of the sender.
        signature: Signature,
    },
    /// The attempt was aborted; the next one is without these.
    Decision {
        /// The attempt.
        view: ViewKey,
        /// Sorted.
        suspects: Vec<PeerId>,
        /// All other members' signatures under that, in ring order.
        proof: Vec<(PeerId, Signature)>,
    },
    /// I have committed this round. To followers after the round's pieces; to others as an answer.
    Committed {
        /// The attempt that succeeded.
        view: ViewKey,
        /// Its record.
        record: Record,
        /// The state's digest after the round.
        digest: Digest,
    },
    /// You have other headers than I, which are these: somebody has said two things.
    Headers {
        /// The attempt.
        view: ViewKey,
        /// All of them.
        headers: Vec<Signed<Header>>,
    },
    /// Your state is another than mine. This is what the owners have signed of the sums of the last round, in ring order.
    Seals {
        /// The attempt that succeeded.
        view: ViewKey,
        /// One of each.
        seals: Vec<Seal>,
    },
    /// Somebody has said two things.
    Convicted(Box<Conviction>),
    /// Send me what I lack of a committed round.
    Repair {
        /// The attempt that succeeded.
        view: ViewKey,
        /// Chunk and piece.
        missing: Vec<(u16, u32)>,
    },
    /// I am no longer a member of that view.
    Out {
        /// The view.
        view: ViewKey,
    },
    /// Where my lineage stands, to a peer that is not in my view.
    Status {
        /// The lineage.
        standing: Standing,
        /// Where others may have left it, the last first: the lineages there.
        places: Vec<Digest>,
        /// What shows it.
        claim: Option<Box<Claim>>,
        /// Whether the sender is a member, rather than a newcomer with an old state.
        member: bool,
        /// Whether the sender has finished the run.
        finished: bool,
    },
    /// Let me follow you.
    Follow {
        /// What I hold already, if anything.
        have: Option<Standing>,
        /// What lets me in.
        admission: Box<Admission>,
        /// Where I can be dialled.
        contact: Contact,
    },
    /// You follow me from this head on.
    Following {
        /// The sponsor's ledger.
        head: Box<Head>,
        /// The state's digest at that head.
        digest: Digest,
        /// The lineage of what the follower holds already, if that goes on from here.
        resumes: Option<Digest>,
        /// Whether the follower is in the sponsor's view already: it was admitted and had not heard.
        member: bool,
        /// What shows where the ledger stands: who enters there has to show it too.
        claim: Option<Box<Claim>>,
    },
    /// You cannot follow me.
    NotMember {
        /// My old lineage, if I have a whole state of one.
        standing: Option<Standing>,
        /// How many others away somebody follows a member, if any does; 0 if I do.
        follows: Option<u8>,
    },
    /// I do not let you in.
    Barred {
        /// Why not.
        why: Barred,
    },
    /// The run has no place for you now.
    NoPlace,
    /// A follower has applied this round.
    Followed {
        /// The round.
        round: Round,
    },
    /// A follower has caught up and may become a member (or, `None`: it follows somebody else now).
    Ready {
        /// What its sponsor may pass on.
        ready: Option<Signed<Ready>>,
    },
    /// Send me a block of the state.
    Fetch {
        /// Which.
        block: u32,
    },
    /// A block of the state as it is after a round.
    Block {
        /// Which.
        block: u32,
        /// The round.
        round: Round,
        /// Lineage at that round.
        chain: Digest,
        /// Parameters, then each optimizer slot, little-endian f32.
        #[serde(skip)]
        data: Bytes,
    },
    /// I have all blocks of the state that you have, and they do not have your digest.
    Doubt,
    /// The digests of the state's blocks, those of a state of which I have told the digest.
    Digests {
        /// Lineage at which it is so.
        chain: Digest,
        /// One after the other.
        #[serde(skip)]
        data: Bytes,
    },
    /// Send me your moments of a part: I have said that I learn it.
    Learn {
        /// Which.
        part: u16,
    },
    /// A piece of a part's moments, as it is.
    Moments {
        /// Of which part.
        part: u16,
        /// Which piece of it.
        piece: u32,
        /// The lineage after the round that it was stepped by last.
        stepped: Digest,
        /// What of each of the optimizer's vectors goes with its elements: their numbers, then their codes.
        #[serde(skip)]
        data: Bytes,
    },
    /// Send me, in this attempt, what of a lane goes to my span and is not here, as soon as you have it.
    Want {
        /// The attempt.
        view: ViewKey,
        /// My span.
        span: u16,
        /// The lane.
        lane: u16,
        /// Whether it is what comes back from the next span, the gradient, rather than what the one before gives.
        back: bool,
        /// The microbatches of which it is here, in order.
        have: Vec<u32>,
    },
    /// Activations of a microbatch, or their gradient, on their way over a boundary.
    Tensor {
        /// The lineage before the round: whatever attempt it was made in, it is the same.
        chain: Digest,
        /// The span that gives it.
        span: u16,
        /// Whether it is the gradient, and goes to the span before.
        back: bool,
        /// The microbatch.
        microbatch: u32,
        /// Encoded values.
        #[serde(skip)]
        data: Bytes,
    },
    /// I hold all sums of the parts that I keep, and know that all others do: I can commit this attempt, whoever else does.
    Held {
        /// The attempt.
        view: ViewKey,
    },
    /// These may need each other: I leave, or am nobody that they have.
    Acquaintances {
        /// Whom I know, and where they can be dialled.
        acquaintances: Vec<(PeerId, Contact)>,
    },
    /// Pass this frame on: the sender has no link to `to`.
    Relay {
        /// Who wrote it, and for whom.
        envelope: Envelope,
        /// The frame.
        #[serde(skip)]
        frame: Bytes,
    },
    /// I have no link to that peer. Have the two of us dial each other at once.
    Introduce {
        /// Whom.
        to: PeerId,
    },
    /// Dial that peer now: it is told to dial you.
    Introduced {
        /// Whom.
        peer: PeerId,
        /// Where it says that it can be dialled, and where I see it.
        contact: Contact,
        /// The round-trip time of my link to it, in microseconds.
        rtt_us: u32,
    },
    /// I have no link to that peer either.
    Unreachable {
        /// As it came.
        envelope: Envelope,
        /// The frame that was to be passed on, for another way.
        #[serde(skip)]
        frame: Bytes,
    },
}

/// Why a frame is no message. The receiver's state has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than it says, or over a limit.
    #[error("a frame's length is wrong or over the limit")]
    Length,
    /// Not a message of this version.
    #[error("a frame is not a message of this version")]
    Meaning,
}

impl Message {
    /// As a frame in two parts, the second possibly empty and shared with the message.
    pub fn encode(&self) -> (Bytes, Bytes) {
        // Most are short.
        let mut meta = Vec::with_capacity(64);
        meta.extend([0; 4]);
        meta = postcard::to_extend(self, meta).expect("a message has only plain data");
        let len = (meta.len() - 4) as u32;
        meta[..4].copy_from_slice(&len.to_le_bytes());
        let payload = match self {
            Self::Piece { data, .. }
            | Self::Block { data, .. }
            | Self::Digests { data, .. }
            | Self::Moments { data, .. }
            | Self::Tensor { data, .. } => data.clone(),
            Self::Relay { frame, .. } | Self::Unreachable { frame, .. } => frame.clone(),
            _ => Bytes::new(),
        };
        (meta.into(), payload)
    }

    /// Bytes of the second part.
    pub(crate) fn payload_len(&self) -> usize {
        match self {
            Self::Piece { data, .. }
            | Self::Block { data, .. }
            | Self::Digests { data, .. }
            | Self::Moments { data, .. }
            | Self::Tensor { data, .. } => data.len(),
            Self::Relay { frame, .. } | Self::Unreachable { frame, .. } => frame.len(),
            _ => 0,
        }
    }

    /// As one contiguous frame.
    pub fn to_frame(&self) -> Bytes {
        let (meta, payload) = self.encode();
        if payload.is_empty() {
            return meta;
        }
        [meta, payload].concat().into()
    }

    /// Reads a frame. The payload stays where it is.
    pub fn decode(mut frame: Bytes) -> Result<Self, WireError> {
        if frame.len() < 4 {
            return Err(WireError::Length);
        }
        let len = u32::from_le_bytes(frame[..4].try_into().expect("four bytes")) as usize;
        if len > META_LIMIT || len > frame.len() - 4 || frame.len() - 4 - len > PAYLOAD_LIMIT {
            return Err(WireError::Length);
        }
        let payload = frame.split_off(4 + len);
        let (mut message, rest): (Self, _) =
            postcard::take_from_bytes(&frame[4..]).map_err(|_| WireError::Meaning)?;
        if !rest.is_empty() {
            // Padding, which would be held as long as the payload is.
            return Err(WireError::Length);
        }
        match &mut message {
            Self::Piece { data, .. }
            | Self::Block { data, .. }
            | Self::Digests { data, .. }
            | Self::Moments { data, .. }
            | Self::Tensor { data, .. } => *data = payload,
            Self::Relay { frame, .. } | Self::Unreachable { frame, .. } => *frame = payload,
            _ if !payload.is_empty() => return Err(WireError::Length),
            _ => {}
        }
        if message.is_bounded() {
            Ok(message)
        } else {
            Err(WireError::Length)
        }
    }

    /// Whether every list is within its limit.
    fn is_bounded(&self) -> bool {
        let headers_ok =
            |headers: &[Signed<Header>]| headers.len() <= MAX_PEERS && headers.iter().all(|h| is_bounded(h));
        match self {
            Self::Piece { headers, .. } | Self::Headers { headers, .. } => headers_ok(headers),
            Self::Convicted(proof) => {
                let admission = proof.admission.as_ref();
                let said_ok = match &proof.said {
                    Contradiction::Headers(headers) => headers_ok(headers),
                    Contradiction::Seals { .. } => true,
                };
                said_ok && admission.is_none_or(|a| a.chain.is_bounded())
            }
            Self::Seals { seals, .. } => seals.len() <= MAX_PEERS,
            Self::Want { have, .. } => have.is_sorted_by(|a, b| a < b),
            Self::Flush { suspects, .. } => are_bounded(suspects),
            Self::Decision { suspects, proof, .. } => are_bounded(suspects) && proof.len() <= MAX_PEERS,
            // Each once, and so no more than there are.
            Self::Repair { missing, .. } => missing.is_sorted_by(|a, b| a < b),
            Self::Committed { record, .. } => !record.headers.is_empty() && headers_ok(&record.headers),
            Self::Status { places, claim, .. } => {
                let shown = claim
                    .as_ref()
                    .is_none_or(|claim| headers_ok(&claim.record.headers));
                places.len() <= FORKS + 1 && shown
            }
            Self::Following { head, claim, .. } => {
                let shown = claim
                    .as_ref()
                    .is_none_or(|claim| headers_ok(&claim.record.headers));
                let bounded = |m: &Member| m.contact.is_bounded() && m.admission.chain.is_bounded();
                shown && head.members.len() <= MAX_PEERS && head.members.iter().all(bounded)
            }
            Self::Follow {
                contact, admission, ..
            } => contact.is_bounded() && admission.chain.is_bounded(),
            Self::Introduced { contact, .. } => contact.is_bounded(),
            Self::Acquaintances { acquaintances } => {
                acquaintances.len() <= MAX_PEERS && acquaintances.iter().all(|(_, c)| c.is_bounded())
            }
            _ => true,
        }
    }
}

/// Whether what a header names is within its limits.
fn is_bounded(header: &Header) -> bool {
    let newcomer = |n: &Newcomer| n.contact.is_bounded() && n.admission.chain.is_bounded();
    header.ready.len() <= MAX_NAMED
        && header.ready.iter().all(newcomer)
        && header.revoked.len() <= Revocation::MOST
        && header.revoked.iter().all(|r| r.chain.is_bounded())
        && header.keeps.is_bounded()
}

/// Whether suspects are such as members name.
fn are_bounded(suspects: &[PeerId]) -> bool {
    suspects.len() <= MAX_PEERS && suspects.is_sorted_by(|a, b| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIEW: ViewKey = ViewKey {
        round: 1,
        attempt: 0,
        id: 7,
    };

    #[test]
    fn a_frame_holds_its_message_and_nothing_beside_it() {
        let message = Message::Block {
            block: 1,
            round: 2,
            chain: Digest([3; 32]),
            data: Bytes::from_static(&[1, 2, 3]),
        };
        let (meta, payload) = message.encode();
        let padded = |padding: usize| {
            let len = (meta.len() - 4 + padding) as u32;
            let parts = [&len.to_le_bytes(), &meta[4..], &vec![0; padding], &payload[..]];
            Message::decode(Bytes::from(parts.concat()))
        };
        assert_eq!(padded(0), Ok(message.clone()));
        assert_eq!(padded(1), Err(WireError::Length));
        assert_eq!(padded(1000), Err(WireError::Length));
    }

    #[test]
    fn who_is_introduced_has_addresses_that_a_header_may_name() {
        let introduce = |addresses: usize, len: usize| {
            let frame = Message::Introduced {
                peer: PeerId([1; 32]),
                contact: Contact(vec!["x".repeat(len); addresses]),
                rtt_us: 0,
            };
            Message::decode(frame.to_frame()).map(|_| ())
        };
        assert_eq!(introduce(Contact::LIMIT, Contact::ADDRESS_LIMIT), Ok(()));
        assert_eq!(introduce(Contact::LIMIT + 1, 1), Err(WireError::Length));
        assert_eq!(introduce(1, Contact::ADDRESS_LIMIT + 1), Err(WireError::Length));
    }

    #[test]
    fn a_question_names_each_piece_once() {
        let ask = |missing: &[(u16, u32)]| {
            let missing = missing.to_vec();
            let frame = Message::Repair { view: VIEW, missing }.to_frame();
            Message::decode(frame).map(|_| ())
        };
        assert_eq!(ask(&[]), Ok(()));
        assert_eq!(ask(&[(0, 0), (0, 1), (1, 0)]), Ok(()));
        assert_eq!(ask(&[(0, 0), (0, 0)]), Err(WireError::Length));
        assert_eq!(ask(&[(1, 0), (0, 1)]), Err(WireError::Length));
    }
}
