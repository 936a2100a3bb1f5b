//! Tickets: the one line of text that lets somebody join a run.
//!
//! A ticket says where to dial, which run, and what it grants: a chain that goes back to the run's key, and the secret
//! half of the key that the last grant was made to. It knows nothing of connections. The code that signs with the
//! secret makes sure that it never crosses the wire.

use annulus_core::invitation::{Chain, ChainError, Invitation, Role, Root};
use annulus_core::signature::Key;
use annulus_core::{Contact, PeerId, RunId};
use data_encoding::{Encoding, Specification};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::LazyLock,
};

/// Start of every ticket's text; the number is the format's version.
pub const START: &str = "annulus2";

/// The characters of a ticket, in lower or upper case.
const ALPHABET: &str = "0123456789abcdefghjkmnpqrstvwxyz";

/// Most addresses in one ticket.
const MAX_ADDRESSES: usize = Contact::LIMIT;

/// Bytes of BLAKE3 at the end. A mistyped ticket passes once in four billion.
const CHECKSUM: usize = 4;

/// Longest text that is parsed. Four grants and [`MAX_ADDRESSES`] IPv6 addresses need about 1,150 characters.
pub const MAX_TEXT: usize = 1280;

/// Everything that a newcomer needs.
#[derive(Clone, PartialEq)]
pub struct Ticket {
    /// The addresses of members of the run.
    pub addrs: Vec<SocketAddr>,
    /// The run, and the key that all rights in it go back to.
    pub root: Root,
    /// The grants.
    pub chain: Chain,
    /// The secret half of the key that the last grant was made to.
    pub secret: Secret,
}

impl Ticket {
    /// Makes a ticket for others from one's own right. Without narrower limits it has the same ones.
    ///
    /// # Errors
    ///
    /// If it would grant more than the right does.
    pub fn made_from(
        right: &Invitation,
        root: Root,
        role: Role,
        until_s: Option<u64>,
        uses: Option<u32>,
    ) -> Result<Self, ChainError> {
        let (secret, last) = (Secret::generate(), right.chain.0.last());
        let until_s = until_s.or(last.and_then(|last| last.until_s));
        let uses = uses.or(last.and_then(|last| last.uses));
        let made = right.narrow(root, secret.key(), role, until_s, uses)?;
        Ok(Self {
            addrs: Vec::new(),
            root,
            chain: made.chain,
            secret,
        })
    }

    /// The ticket in a text as people paste it: with a command or an address around it, in quotes, or folded over lines.
    ///
    /// # Errors
    ///
    /// If there is none, or it cannot be used.
    pub fn in_text(text: &str) -> Result<Self, TicketError> {
        let lower = text.to_ascii_lowercase();
        let mut problem = None;
        for (at, _) in lower.match_indices(START) {
            let mut whole = String::new();
            // Nothing says where it ends: the checksum of the right one fits.
            for piece in lower[at..].split(|c: char| !c.is_ascii_alphanumeric()) {
                whole.push_str(piece);
                if whole.len() > MAX_TEXT {
                    break;
                }
                if let Ok(ticket) = whole.parse() {
                    return Ok(ticket);
                }
            }
            let is_quote = |c: char| "\"'`<>,.;".contains(c);
            let first = text[at..].split_whitespace().next().unwrap_or_default();
            let told = first.trim_matches(is_quote).parse::<Self>().err();
            problem = problem.or(told);
        }
        match problem {
            Some(problem) => Err(problem),
            None => text.parse(),
        }
    }

    /// The right that it gives.
    pub fn right(&self) -> Invitation {
        Invitation {
            chain: self.chain.clone(),
            key: self.secret.key(),
        }
    }
}

/// The secret half of a key: 256 random bits that nobody can guess.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// A new one from the operating system's generator.
    pub fn generate() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        Self(bytes)
    }

    /// The key.
    pub fn key(&self) -> Key {
        Key::from_seed(&self.0)
    }
}

impl fmt::Debug for Secret {
    /// Prints nothing, so that no log reveals it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Ticket {{ addrs: {:?}, run: {}, role: {}, secret: .. }}",
            self.addrs,
            self.root.run,
            self.chain.role()
        )
    }
}

impl fmt::Display for Ticket {
    /// The text to hand on. It contains the secret. Addresses beyond [`Contact::LIMIT`] are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Root { run, key } = self.root;
        let mut bytes = [run.0, key.0, self.secret.0].concat();
        bytes = postcard::to_extend(&self.chain, bytes).expect("a chain has only plain data");
        for addr in self.addrs.iter().take(MAX_ADDRESSES) {
            match addr.ip() {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
            }
            bytes.extend(addr.port().to_be_bytes());
        }
        bytes.extend(checksum(&bytes));
        write!(f, "{START}{}", BASE32.encode(&bytes))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        if text.len() > MAX_TEXT {
            return Err(TicketError::TooLong);
        }
        let lower = text.to_ascii_lowercase();
        let body = match lower.strip_prefix(START) {
            Some(body) => body,
            None if lower.starts_with("annulus") => return Err(TicketError::OtherVersion),
            None => return Err(TicketError::NoTicket),
        };
        let bytes = decode(body)?;
        let (payload, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(TicketError::Cut)?;
        if checksum(payload) != *sum {
            return Err(TicketError::Mistyped);
        }
        let (run, rest) = payload.split_first_chunk().ok_or(TicketError::Cut)?;
        let (key, rest) = rest.split_first_chunk().ok_or(TicketError::Cut)?;
        let (secret, rest) = rest.split_first_chunk().ok_or(TicketError::Cut)?;
        let (chain, mut rest): (Chain, _) = postcard::take_from_bytes(rest).map_err(|_| TicketError::Cut)?;
        let mut addrs = vec![];
        while let [kind, after @ ..] = rest {
            let (ip, after) = match kind {
                4 => after
                    .split_first_chunk::<4>()
                    .map(|(ip, after)| (IpAddr::from(*ip), after)),
                6 => after
                    .split_first_chunk::<16>()
                    .map(|(ip, after)| (IpAddr::from(*ip), after)),
                _ => return Err(TicketError::OtherVersion),
            }
            .ok_or(TicketError::Cut)?;
            let (port, after) = after.split_first_chunk().ok_or(TicketError::Cut)?;
            addrs.push(SocketAddr::new(ip, u16::from_be_bytes(*port)));
            rest = after;
        }
        if addrs.is_empty() {
            return Err(TicketError::NoAddress);
        }
        if addrs.len() > MAX_ADDRESSES {
            return Err(TicketError::TooManyAddresses(addrs.len()));
        }
        let root = Root {
            run: RunId(*run),
            key: PeerId(*key),
        };
        let secret = Secret(*secret);
        let ticket = Self {
            addrs,
            root,
            chain,
            secret,
        };
        match ticket.chain.0.is_empty() {
            // Otherwise it would be the run's own key.
            true => Err(TicketError::Cut),
            false => ticket
                .right()
                .check(root)
                .map(|()| ticket)
                .map_err(TicketError::Chain),
        }
    }
}

/// What is wrong with a ticket's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// The text is not a ticket at all.
    #[error("this is no ticket: a ticket starts with `{START}`. `annulus train` prints one when it starts")]
    NoTicket,
    /// The ticket is of another release.
    #[error("this ticket was made by another release of annulus: use the same release on all machines")]
    OtherVersion,
    /// It has a character that no ticket has.
    #[error("the ticket holds {0:?}, which no ticket has: copy it again")]
    Character(char),
    /// It was altered or is incomplete.
    #[error("the ticket is mistyped or not whole (its checksum does not fit): copy all of it again")]
    Mistyped,
    /// It is too short to be complete.
    #[error("the ticket is not whole: copy all of it, it is one long word")]
    Cut,
    /// It is longer than any ticket.
    #[error("this text is longer than any ticket: copy the ticket alone")]
    TooLong,
    /// It names no address.
    #[error("the ticket names no address to dial: ask for a new one")]
    NoAddress,
    /// Its grants are invalid.
    #[error(transparent)]
    Chain(ChainError),
    /// It names too many addresses.
    #[error("the ticket names {0} addresses, {MAX_ADDRESSES} are allowed: ask for a new one")]
    TooManyAddresses(usize),
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let hash = blake3::derive_key("annulus 2 ticket checksum", bytes);
    *hash.first_chunk().expect("a hash is longer than a checksum")
}

/// Crockford's base 32: no letter that can be mistaken for a digit, and look-alikes are read as what they look like.
static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut spec = Specification::new();
    spec.symbols.push_str(ALPHABET);
    spec.translate.from.push_str("oil");
    spec.translate.to.push_str("011");
    spec.encoding().expect("32 different symbols")
});

/// Decodes lower-case text. A surplus character, or set padding bits, would be a second text of the same ticket.
fn decode(text: &str) -> Result<Vec<u8>, TicketError> {
    match text
        .chars()
        .find(|&c| !ALPHABET.contains(c) && !"oil".contains(c))
    {
        Some(c) => Err(TicketError::Character(c)),
        None => BASE32.decode(text.as_bytes()).map_err(|_| TicketError::Mistyped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RUN: RunId = RunId([3; 32]);

    /// A ticket with this many grants.
    fn ticket(addrs: Vec<SocketAddr>, grants: usize, until_s: Option<u64>) -> Ticket {
        let mut right = Invitation::of_run(Key::from_seed(&[7; 32]));
        let root = Root {
            run: RUN,
            key: right.key.peer(),
        };
        let mut ticket = Ticket::made_from(&right, root, Role::Member, until_s, None).unwrap();
        for _ in 1..grants {
            right = ticket.right();
            ticket = Ticket::made_from(&right, root, Role::Member, None, Some(1000)).unwrap();
        }
        Ticket { addrs, ..ticket }
    }

    fn tickets() -> impl Strategy<Value = Ticket> {
        let addr = (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
        let addrs = prop::collection::vec(addr, 1..=MAX_ADDRESSES);
        (addrs, 1usize..=4, any::<Option<u64>>())
            .prop_map(|(addrs, grants, until)| ticket(addrs, grants, until))
    }

    proptest! {
        #[test]
        fn a_ticket_comes_back(ticket in tickets()) {
            let text = ticket.to_string();
            prop_assert!(text.len() <= MAX_TEXT);
            prop_assert_eq!(&text.parse::<Ticket>().unwrap(), &ticket);
            prop_assert_eq!(&format!(" {}\n", text.to_uppercase()).parse::<Ticket>().unwrap(), &ticket);
        }

        #[test]
        fn a_typing_error_is_told(ticket in tickets(), at in any::<prop::sample::Index>(), to in 0usize..32) {
            let mut text = ticket.to_string().into_bytes();
            let at = START.len() + at.index(text.len() - START.len());
            prop_assume!(text[at] != ALPHABET.as_bytes()[to]);
            text[at] = ALPHABET.as_bytes()[to];
            prop_assert!(String::from_utf8(text).unwrap().parse::<Ticket>().is_err());
        }

        #[test]
        fn a_cut_ticket_is_told(ticket in tickets(), to in any::<prop::sample::Index>()) {
            let text = ticket.to_string();
            prop_assert!(text[..to.index(text.len())].parse::<Ticket>().is_err());
        }

        #[test]
        fn any_text_is_an_error_and_no_panic(text in "\\PC*", body in "[0-9a-z]*") {
            prop_assert!(text.parse::<Ticket>().is_err());
            let text = format!("{START}{}", body);
            prop_assert!(text.parse::<Ticket>().is_err());
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let ticket = ticket(vec!["192.0.2.7:4100".parse().unwrap()], 1, None);
        let text = ticket.to_string();
        assert!(text.len() < 350, "{text}");
        assert_eq!("hello".parse::<Ticket>(), Err(TicketError::NoTicket));
        assert_eq!(
            text.replacen("annulus2", "annulus1", 1).parse::<Ticket>(),
            Err(TicketError::OtherVersion)
        );
        assert_eq!(
            format!("{text}!").parse::<Ticket>(),
            Err(TicketError::Character('!'))
        );
        assert_eq!(START.parse::<Ticket>(), Err(TicketError::Cut));
        assert_eq!("a".repeat(2000).parse::<Ticket>(), Err(TicketError::TooLong));
        let with = |change: fn(&mut Ticket)| {
            let mut ticket = ticket.clone();
            change(&mut ticket);
            ticket.to_string().parse::<Ticket>()
        };
        assert_eq!(with(|t| t.addrs.clear()), Err(TicketError::NoAddress));
        let unsigned = Err(TicketError::Chain(ChainError::Unsigned));
        assert_eq!(with(|t| t.secret = Secret([99; 32])), unsigned);
        assert_eq!(with(|t| t.chain.0[0].content.until_s = Some(1)), unsigned);
        assert_eq!(with(|t| t.chain.0.clear()), Err(TicketError::Cut));
        let shown = format!("{:?} {:?}", Secret([99; 32]), ticket);
        let hidden = data_encoding::HEXLOWER.encode(&ticket.secret.0);
        assert!(
            !shown.contains("99") && !shown.contains(&hidden),
            "the secret shows in {shown}"
        );
    }
}
