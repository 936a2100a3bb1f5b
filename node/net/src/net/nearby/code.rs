//! The code that a member shows, and that lets in a person on the same network who types it.
//!
//! Its first two digits are announced: they say whose code it is. The other six are the secret. So few are enough
//! because a guess must ask that member, which allows only few: see [`pake`](super::pake) and [`door`](super::door).

use std::fmt;
use std::str::FromStr;

/// How many secrets there are.
const SECRETS: u64 = 1_000_000;

/// The public part, which distinguishes the codes of several members, up to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(u8);

impl Tag {
    /// How many there are.
    const COUNT: u64 = 100;

    fn random() -> Self {
        Self(random(Self::COUNT) as u8)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}", self.0)
    }
}

impl FromStr for Tag {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, CodeError> {
        match text.as_bytes() {
            [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Ok(Self(10 * (tens - b'0') + ones - b'0')),
            _ => Err(CodeError),
        }
    }
}

/// A member's code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code {
    tag: Tag,
    secret: u32,
}

impl Code {
    /// A new one from the operating system's generator.
    pub fn generate() -> Self {
        Self::under(Tag::random())
    }

    /// A new one with the same public part.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::under(self.tag)
    }

    /// Its public part.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    fn under(tag: Tag) -> Self {
        let secret = random(SECRETS) as u32;
        Self { tag, secret }
    }
}

/// A random number below a small bound. The remainder of 64 bits is uniform to one part in 10^13.
fn random(below: u64) -> u64 {
    getrandom::u64().expect("the operating system gives random bytes") % below
}

impl fmt::Display for Code {
    /// The text to show and to type. It contains the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, secret } = self;
        write!(f, "{tag}-{:03}-{:03}", secret / 1000, secret % 1000)
    }
}

impl fmt::Debug for Code {
    /// Without the secret, so that no log reveals it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({}-..)", self.tag)
    }
}

impl FromStr for Code {
    type Err = CodeError;

    /// Accepts any grouping of the digits.
    fn from_str(text: &str) -> Result<Self, CodeError> {
        let separates = |c: char| c == '-' || c.is_whitespace();
        let digits: String = text.chars().filter(|c| !separates(*c)).take(9).collect();
        let (tag, secret) = digits.split_at_checked(2).ok_or(CodeError)?;
        if secret.len() != 6 || !secret.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(CodeError);
        }
        Ok(Self {
            tag: tag.parse()?,
            secret: secret.parse().map_err(|_| CodeError)?,
        })
    }
}

/// The text is not a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a code has eight digits, as in 12-345-678")]
pub struct CodeError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_comes_back_however_it_is_typed() {
        for _ in 0..100 {
            let code = Code::generate();
            let text = code.to_string();
            assert_eq!((text.len(), text.parse()), (10, Ok(code)));
            assert_eq!(code.another().tag(), code.tag());
            assert_eq!(format!(" {} ", text.replace('-', " ")).parse(), Ok(code));
            assert_eq!(text.replace('-', "").parse(), Ok(code));
            assert_eq!(code.tag().to_string().parse(), Ok(code.tag()));
        }
        let code: Code = "07-000-042".parse().unwrap();
        assert_eq!((code.tag(), code.secret), (Tag(7), 42));
        assert_eq!(format!("{code:?}"), "Code(07-..)");
        for wrong in [
            "",
            "07",
            "07-000-04",
            "07-000-0421",
            "07-000-04x",
            "+7-000-042",
            "07-+00-042",
            "ä7000042",
        ] {
            assert_eq!(wrong.parse::<Code>(), Err(CodeError), "{wrong}");
        }
        for wrong in ["", "7", "007", "+7", "x7"] {
            assert_eq!(wrong.parse::<Tag>(), Err(CodeError), "{wrong}");
        }
    }

    #[test]
    fn codes_are_drawn_from_all_that_there_are() {
        let codes: Vec<Code> = (0..2000).map(|_| Code::generate()).collect();
        for half in 0..2 {
            let drawn = |low: bool| if half == 0 { low } else { !low };
            let secrets = codes.iter().filter(|code| drawn(code.secret < 500_000)).count();
            let tags = codes.iter().filter(|code| drawn(code.tag.0 < 50)).count();
            // Ten standard deviations.
            assert!(
                (776..=1224).contains(&secrets) && (776..=1224).contains(&tags),
                "{secrets} {tags}"
            );
        }
    }
}
