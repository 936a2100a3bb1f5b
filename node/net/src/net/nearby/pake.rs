//! Derives a strong key from a short code that both ends know, by SPAKE2 over the curve of our signatures (crate
//! `spake2`).
//!
//! An attacker who does not know the code learns from an exchange only whether one guess was right, and nothing to test
//! other guesses offline. This holds for either end, and for anybody who reads or alters the messages. The exchange is
//! bound to the names that TLS has shown to both ends and to their session. So a man in the middle, who has another
//! name and other sessions, gets nowhere even if both ends know the code. The joiner proves first that it knows the
//! code; before that the host has sent nothing that would reveal whether a guess is wrong.
//!
//! It knows no sockets and counts no guesses.

use super::code::Code;
use crate::net::ticket::MAX_TEXT;
use annulus_core::PeerId;
use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use spake2::{Ed25519Group, Identity, Password, Spake2};

/// Bytes of each end's first message: a mark of its side, and a point of the curve.
pub const SHARE: usize = 33;

/// Bytes of the joiner's proof.
pub const PROOF: usize = 32;

/// Bytes of a sealed ticket: always the same, so that the length reveals nothing.
pub const SEALED: usize = MAX_TEXT + 16;

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that wants to join.
    Joiner,
    /// The end that admits.
    Host,
}

/// The names of the two ends, as TLS has shown them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The end that wants to join.
    pub joiner: PeerId,
    /// The end that admits.
    pub host: PeerId,
}

/// An exchange whose first message was made.
pub struct Exchange(Spake2<Ed25519Group>);

impl Exchange {
    /// Starts an exchange; returns the message for the other end.
    pub fn begin(side: Side, code: &Code, names: Names) -> (Self, [u8; SHARE]) {
        let start = match side {
            Side::Joiner => Spake2::<Ed25519Group>::start_a,
            Side::Host => Spake2::<Ed25519Group>::start_b,
        };
        let (state, share) = start(
            &Password::new(code.to_string()),
            &Identity::new(&names.joiner.0),
            &Identity::new(&names.host.0),
        );
        let share = share.try_into().expect("a mark and a point");
        (Self(state), share)
    }

    /// Completes the exchange with the other end's message and a value unique to the session. None if the message is
    /// not a point of the curve, or is from the same side. Whether the other end knows the code is not known yet.
    pub fn finish(self, theirs: &[u8; SHARE], session: &[u8; 32]) -> Option<Agreed> {
        let key = self.0.finish(theirs).ok()?;
        let key = [&key[..], session].concat();
        Some(Agreed {
            proof: blake3::derive_key("annulus 1 code: the joiner's proof", &key),
            seal: blake3::derive_key("annulus 1 code: the ticket's seal", &key),
        })
    }
}

/// The key that both ends share if both know the code.
pub struct Agreed {
    proof: [u8; PROOF],
    seal: [u8; 32],
}

impl Agreed {
    /// The joiner's proof that it knows the code.
    pub fn proof(&self) -> [u8; PROOF] {
        self.proof
    }

    /// Checks that proof.
    pub fn is_proven_by(&self, proof: &[u8; PROOF]) -> bool {
        verify_slices_are_equal(&self.proof, proof).is_ok()
    }

    /// Seals a ticket for the joiner alone, which also proves that the host knows the code.
    ///
    /// # Panics
    ///
    /// If the text is longer than any ticket.
    pub fn seal(self, ticket: &str) -> [u8; SEALED] {
        assert!(ticket.len() <= MAX_TEXT, "it is longer than any ticket");
        let mut sealed = [0; SEALED];
        let (text, tag) = sealed.split_at_mut(MAX_TEXT);
        text[..ticket.len()].copy_from_slice(ticket.as_bytes());
        let made = self.key().seal_in_place_separate_tag(once(), Aad::empty(), text);
        tag.copy_from_slice(made.expect("so few bytes can be sealed").as_ref());
        sealed
    }

    /// The ticket's text, if the one who sealed it knows the code.
    pub fn open(self, mut sealed: [u8; SEALED]) -> Option<String> {
        let text = self.key().open_in_place(once(), Aad::empty(), &mut sealed).ok()?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8(text[..end].to_vec()).ok()
    }

    fn key(&self) -> LessSafeKey {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.seal);
        LessSafeKey::new(key.expect("a key of 32 bytes"))
    }
}

/// A key belongs to one session and seals one text, so the nonce can be constant.
fn once() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names {
        joiner: PeerId([1; 32]),
        host: PeerId([2; 32]),
    };
    const SESSION: [u8; 32] = [9; 32];

    /// The inputs of one end.
    #[derive(Clone, Copy)]
    struct End {
        code: &'static str,
        names: Names,
        session: [u8; 32],
    }

    const GOOD: End = End {
        code: "12-345-678",
        names: NAMES,
        session: SESSION,
    };

    fn begin(side: Side, end: End) -> (Exchange, [u8; SHARE]) {
        Exchange::begin(side, &end.code.parse().unwrap(), end.names)
    }

    /// The results of both ends.
    fn agreed(joiner: End, host: End) -> (Agreed, Agreed) {
        let (one, said) = begin(Side::Joiner, joiner);
        let (other, answer) = begin(Side::Host, host);
        let ours = one.finish(&answer, &joiner.session).unwrap();
        (ours, other.finish(&said, &host.session).unwrap())
    }

    #[test]
    fn the_right_code_brings_the_ticket_and_nothing_else_does() {
        let (joiner, host) = agreed(GOOD, GOOD);
        assert!(host.is_proven_by(&joiner.proof()));
        let text = "annulus2".repeat(30);
        assert_eq!(joiner.open(host.seal(&text)), Some(text));
        let longest = "t".repeat(MAX_TEXT);
        let (joiner, host) = agreed(GOOD, GOOD);
        assert_eq!(joiner.open(host.seal(&longest)), Some(longest));

        let stranger = PeerId([3; 32]);
        let as_host = Names {
            host: stranger,
            ..NAMES
        };
        let as_joiner = Names {
            joiner: stranger,
            ..NAMES
        };
        for wrong in [
            End {
                code: "12-345-679",
                ..GOOD
            },
            // A man in the middle appears under its own name, and in sessions of its own.
            End {
                names: as_host,
                ..GOOD
            },
            End {
                names: as_joiner,
                ..GOOD
            },
            End {
                session: [8; 32],
                ..GOOD
            },
        ] {
            let (joiner, host) = agreed(wrong, GOOD);
            assert!(!host.is_proven_by(&joiner.proof()));
            assert_eq!(joiner.open(host.seal("ticket")), None);
        }
    }

    #[test]
    fn what_was_said_once_is_of_no_use_again() {
        let (joiner, said) = begin(Side::Joiner, GOOD);
        let (host, answer) = begin(Side::Host, GOOD);
        let proof = joiner.finish(&answer, &SESSION).unwrap().proof();
        assert!(host.finish(&said, &SESSION).unwrap().is_proven_by(&proof));
        // The same message to the same host, even if its session were the same.
        let (host, _) = begin(Side::Host, GOOD);
        assert!(!host.finish(&said, &SESSION).unwrap().is_proven_by(&proof));
        // And its own message sent back to it.
        let (host, own) = begin(Side::Host, GOOD);
        assert!(host.finish(&own, &SESSION).is_none());
    }

    #[test]
    fn what_is_no_point_or_was_altered_is_refused() {
        let (host, _) = begin(Side::Host, GOOD);
        // No point of the curve has this ordinate.
        let mut no_point = [0; SHARE];
        (no_point[0], no_point[1]) = (b'A', 2);
        assert!(host.finish(&no_point, &SESSION).is_none());
        let (joiner, host) = agreed(GOOD, GOOD);
        let mut sealed = host.seal("ticket");
        sealed[MAX_TEXT / 2] ^= 1;
        assert_eq!(joiner.open(sealed), None);
    }

    #[test]
    fn all_tickets_are_as_long_once_they_are_sealed() {
        let seal = |text: &str| agreed(GOOD, GOOD).1.seal(text).len();
        assert_eq!((seal("a"), seal(&"a".repeat(MAX_TEXT))), (SEALED, SEALED));
    }
}
