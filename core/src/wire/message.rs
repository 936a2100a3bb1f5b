//! Messages between peers: their encoding and their limits. A frame is
//! `[u32 length of meta][meta: postcard][payload]`; the payload (a piece, a block) is never copied here.
//!
//! Hostile input is an error: every length is checked before anything of that length is allocated.

mod said;
mod stopping;

pub use self::said::{Doing, Leg, Slow};
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

/// Version of the messages and all that is in them. The handshake refuses peers of another version by its first
/// word. Change it with every field, and with every rule by which members derive who computes what.
pub const VERSION: u16 = 29;

/// Most bytes of a frame's meta part. Fits a full view's headers with contacts.
pub const META_LIMIT: usize = 1 << 20;

/// Most bytes of a frame's payload.
pub const PAYLOAD_LIMIT: usize = 8 << 20;

// The bounds on everything else that others can make grow. `Peer::buffered_bytes` counts all of it.
//
// | what | bound | file |
// |---|---|---|
// | early pieces of all peers, strangers' dropped first | two vectors and 128 KiB | `early.rs` |
// | followers | 64 | `sponsor.rs` |
// | newcomers in a header | 8 | `admission.rs` |
// | data on request, for each peer within the time of an answer | four states and vectors, and 1 MiB | `allowance.rs` |
// | signature checks for others than members, all together | 1,024 per second | `checks.rs` |
// | peers whose requests and checks are counted | 512 and 256 | `allowance.rs`, `checks.rs` |
// | known peers' contacts, and for each the relays that have a link | 128 | `links.rs` |
// | other memory of peers | 256 | `shared.rs`, `conviction.rs` |
// | numbers of relayed frames | 32,768 for each of 128 authors | `relayed.rs` |
// | frames whose relay may still refuse them | 1,024 hashes | `links.rs` |
// | aborted attempts of a round | 64 | `agreement.rs` |
// | owners' seals | those of three rounds | `seal.rs` |

/// One of a link's two ordered streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// Small and urgent.
    Control,
    /// Pieces and blocks.
    Bulk,
}

/// The envelope of a frame that another peer relays for its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The author of the frame.
    pub from: PeerId,
    /// The receiver.
    pub to: PeerId,
    /// The author's number of the frame, unique over all starts of the author.
    pub number: u64,
    /// The stream that it uses on all links. Not signed, since a relay can delay frames anyway.
    pub lane: Lane,
    /// The author's signature of all this and the frame.
    pub signature: Signature,
}

/// Everything that peers say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A piece of a chunk, and headers that the receiver is to learn from the sender.
    Piece {
        /// The attempt.
        view: ViewKey,
        /// The direction of the piece.
        leg: Leg,
        /// The owner of the chunk, as a position in the view.
        chunk: u16,
        /// The number of the piece in the chunk.
        piece: u32,
        /// Headers: the sender's own, or others' that it passes on.
        headers: Vec<Signed<Header>>,
        /// Hash of all members' headers, with the first piece for this receiver after the sender had them all.
        all: Option<Digest>,
        /// The owner's seal of the whole chunk, with the last of its finished pieces, if the plan has the owner
        /// send these to all.
        seal: Option<Box<Seal>>,
        /// Encoded values.
        #[serde(skip)]
        data: Bytes,
    },
    /// "Are you there, and what are you doing?"
    Probe {
        /// The sender's attempt.
        view: ViewKey,
        /// Returned in the answer.
        nonce: u32,
    },
    /// Answer to a probe.
    Alive {
        /// The probe's.
        nonce: u32,
        /// The round in work at the answering peer.
        round: Round,
        /// Its activity.
        doing: Doing,
    },
    /// "I have stopped this attempt without committing it, and suspect these."
    Flush {
        /// The attempt.
        view: ViewKey,
        /// Sorted.
        suspects: Vec<PeerId>,
        /// The sender's.
        signature: Signature,
    },
    /// "The attempt was given up; the next one is without these."
    Decision {
        /// The attempt.
        view: ViewKey,
        /// Sorted.
        suspects: Vec<PeerId>,
        /// All other members' signatures for these suspects, in ring order.
        proof: Vec<(PeerId, Signature)>,
    },
    /// "I have committed this round." To followers after the round's pieces; to others as an answer.
    Committed {
        /// The attempt that succeeded.
        view: ViewKey,
        /// Its record.
        record: Record,
        /// The state's digest after the round.
        digest: Digest,
    },
    /// "Your headers differ from mine, which are these: a peer has contradicted itself."
    Headers {
        /// The attempt.
        view: ViewKey,
        /// All of them.
        headers: Vec<Signed<Header>>,
    },
    /// "Your state differs from mine. These are the owners' seals of the last round's sums, in ring order."
    Seals {
        /// The attempt that succeeded.
        view: ViewKey,
        /// One of each owner.
        seals: Vec<Seal>,
    },
    /// "This peer has contradicted itself."
    Convicted(Box<Conviction>),
    /// "This ticket was revoked, and one of your members came by it."
    Revoked(Box<Revocation>),
    /// "Send me these pieces of a committed round."
    Repair {
        /// The attempt that succeeded.
        view: ViewKey,
        /// Chunks and pieces.
        missing: Vec<(u16, u32)>,
    },
    /// "I am not a member of that view any more."
    Out {
        /// The view.
        view: ViewKey,
    },
    /// Where the sender's lineage stands, for a peer outside of its view.
    Status {
        /// The lineage.
        standing: Standing,
        /// The lineages at the places where others may have left it, the last first.
        places: Vec<Digest>,
        /// The proof.
        claim: Option<Box<Claim>>,
        /// Whether the sender is a member, rather than a newcomer with an old state.
        member: bool,
        /// Whether the sender has finished the run.
        finished: bool,
    },
    /// "Let me follow you."
    Follow {
        /// The standing of the sender's state, if it has one.
        have: Option<Standing>,
        /// The proof of its right to come in.
        admission: Box<Admission>,
        /// Where the sender can be dialled.
        contact: Contact,
    },
    /// "You follow me, from this head on."
    Following {
        /// The sponsor's ledger.
        head: Box<Head>,
        /// The state's digest at that head.
        digest: Digest,
        /// The lineage of the state that the follower has already, if this head continues it.
        resumes: Option<Digest>,
        /// Whether the follower is in the sponsor's view already: it was admitted, but had not learned of it.
        member: bool,
        /// The proof of the ledger, which the follower needs once it enters.
        claim: Option<Box<Claim>>,
    },
    /// "You cannot follow me."
    NotMember {
        /// The standing of the sender's old lineage, if it has a whole state of one.
        standing: Option<Standing>,
        /// The number of peers between the sender and a member that it follows, directly or through others. 0 if it
        /// follows a member itself.
        follows: Option<u8>,
    },
    /// "I do not admit you."
    Barred {
        /// The reason.
        why: Barred,
    },
    /// The run has no place for you now.
    NoPlace {
        /// Set if your line is too slow for its rounds.
        slow: Option<Slow>,
    },
    /// "I have applied this round", from a follower.
    Followed {
        /// The round.
        round: Round,
    },
    /// "I have caught up and may become a member", from a follower; `None` if it now follows another peer.
    Ready {
        /// The signed statement that its sponsor passes on.
        ready: Option<Signed<Ready>>,
    },
    /// "Send me a block of the state."
    Fetch {
        /// The block.
        block: u32,
    },
    /// A block of the state as it is after a round.
    Block {
        /// The block.
        block: u32,
        /// The round.
        round: Round,
        /// Lineage at that round.
        chain: Digest,
        /// Parameters, then each optimizer slot, little-endian f32.
        #[serde(skip)]
        data: Bytes,
    },
    /// "I have all your blocks of the state, but not your digest."
    Doubt,
    /// The digests of all blocks of a state whose digest the sender has told.
    Digests {
        /// The lineage of that state.
        chain: Digest,
        /// One after the other.
        #[serde(skip)]
        data: Bytes,
    },
    /// "Send me your moments of a part, which I said that I learn."
    Learn {
        /// The part.
        part: u16,
    },
    /// A piece of a part's moments, as stored.
    Moments {
        /// The part.
        part: u16,
        /// The piece of the part.
        piece: u32,
        /// The lineage after the round that stepped the part last.
        stepped: Digest,
        /// For each of the optimizer's vectors, the floats of these elements, then their codes.
        #[serde(skip)]
        data: Bytes,
    },
    /// "Send me, in this attempt, the tensors of a lane that my span needs and that I lack, as soon as you have
    /// them."
    Want {
        /// The attempt.
        view: ViewKey,
        /// The sender's span.
        span: u16,
        /// The lane.
        lane: u16,
        /// Whether it needs gradients from the next span, rather than activations from the one before.
        back: bool,
        /// The microbatches whose tensors it has, in order.
        have: Vec<u32>,
    },
    /// A microbatch's activations, or their gradient, on the way to the next span.
    Tensor {
        /// The lineage before the round. The attempt does not matter: the tensor is the same in all.
        chain: Digest,
        /// The span that computed it.
        span: u16,
        /// Whether it is the gradient, for the span before.
        back: bool,
        /// The microbatch.
        microbatch: u32,
        /// Encoded values.
        #[serde(skip)]
        data: Bytes,
    },
    /// "I hold all sums of my parts, and know that all others hold theirs: I can commit this attempt, whoever else
    /// does."
    Held {
        /// The attempt.
        view: ViewKey,
    },
    /// "Here are peers that you may need", from a peer that leaves or that is no use to the receiver.
    Acquaintances {
        /// Peers that the sender knows, and where they can be dialled.
        acquaintances: Vec<(PeerId, Contact)>,
    },
    /// "Pass this frame on, since I have no link to the receiver."
    Relay {
        /// The author, the receiver, and the signature.
        envelope: Envelope,
        /// The frame.
        #[serde(skip)]
        frame: Bytes,
    },
    /// "I have no link to that peer. Tell both of us to dial at once."
    Introduce {
        /// The other peer.
        to: PeerId,
    },
    /// "Dial that peer now, as it is told to dial you."
    Introduced {
        /// The other peer.
        peer: PeerId,
        /// Its own addresses, and those at which the sender sees it.
        contact: Contact,
        /// The round-trip time of the sender's link to it, in microseconds.
        rtt_us: u32,
    },
    /// "I have no link to that receiver either."
    Unreachable {
        /// The envelope, unchanged.
        envelope: Envelope,
        /// The frame, for another relay.
        #[serde(skip)]
        frame: Bytes,
    },
}

/// Why a frame is not a message. The receiver's state has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Its length is wrong, or over a limit.
    #[error("a frame's length is wrong or over the limit")]
    Length,
    /// It is not a message of this version.
    #[error("a frame is not a message of this version")]
    Meaning,
}

impl Message {
    /// Encodes it as a frame in two parts. The second may be empty, and shares memory with the message.
    pub fn encode(&self) -> (Bytes, Bytes) {
        // Most messages are short.
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

    /// Encodes it as one contiguous frame.
    pub fn to_frame(&self) -> Bytes {
        let (meta, payload) = self.encode();
        if payload.is_empty() {
            return meta;
        }
        [meta, payload].concat().into()
    }

    /// Decodes a frame. The payload is not copied.
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
            // Padding would be held in memory as long as the payload is.
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
            Self::Revoked(revocation) => revocation.chain.is_bounded(),
            Self::Seals { seals, .. } => seals.len() <= MAX_PEERS,
            Self::Want { have, .. } => have.is_sorted_by(|a, b| a < b),
            Self::Flush { suspects, .. } => are_bounded(suspects),
            Self::Decision { suspects, proof, .. } => are_bounded(suspects) && proof.len() <= MAX_PEERS,
            // Each piece once, which bounds the list.
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

/// Whether the lists of a header are within their limits.
fn is_bounded(header: &Header) -> bool {
    let newcomer = |n: &Newcomer| n.contact.is_bounded() && n.admission.chain.is_bounded();
    header.ready.len() <= MAX_NAMED
        && header.ready.iter().all(newcomer)
        && header.revoked.len() <= Revocation::MOST
        && header.revoked.iter().all(|r| r.chain.is_bounded())
        && header.keeps.is_bounded()
}

/// Whether suspects are in the order that members use, and not too many.
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
