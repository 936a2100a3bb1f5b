//! The token that requests must carry where strangers can reach a server: `Authorization: Bearer TOKEN` (RFC 6750).
//!
//! It must not know what is served.

use super::fresh;
use annulus_net::files::{FileError, read_named, write_private};
use axum::{
    Json,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::Response,
};
use data_encoding::HEXLOWER;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Shortest token, as of the secret by which peers meet: shorter ones can be guessed.
const SHORTEST: usize = 16;

/// Longest token: it must fit into a request's head.
const LONGEST: usize = 1_000;

/// The hash of a token: hashes are compared in constant time, so that the time of an answer tells nothing of the token.
#[derive(Clone, Copy, Debug)]
pub struct Token(blake3::Hash);

/// A file of a token is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// Something else is in it.
    #[error(
        "{path} holds no token, which is {SHORTEST} to {LONGEST} letters, digits and signs in one line: name a file that does \
         not exist yet after --token, and one is made",
        path = .0.display()
    )]
    NoToken(PathBuf),
}

impl Token {
    /// The token in a file. If there is no such file, makes it with a random token that only its owner may read, and returns that
    /// token's text too.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or made, or holds something else.
    pub fn of_file(path: &Path) -> Result<(Self, Option<String>), TokenError> {
        match read_named(path, LONGEST + 2) {
            Err(FileError::Missing(_)) => {
                let mut random = [0; 32];
                getrandom::fill(&mut random).expect("the operating system gives random bytes");
                let text = HEXLOWER.encode(&random);
                write_private(path, format!("{text}\n").as_bytes())?;
                Ok((Self(blake3::hash(text.as_bytes())), Some(text)))
            }
            read => {
                let bytes = read?;
                let text = bytes.trim_ascii();
                let is_one = (SHORTEST..=LONGEST).contains(&text.len());
                match is_one && text.iter().all(u8::is_ascii_graphic) {
                    true => Ok((Self(blake3::hash(text)), None)),
                    false => Err(TokenError::NoToken(path.to_owned())),
                }
            }
        }
    }

    /// Whether a request carries it.
    fn is_in(self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let (scheme, token) = given
            .and_then(|given| given.split_at_checked(7))
            .unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"bearer ") && blake3::hash(token.trim_ascii()) == self.0
    }
}

/// Lets only requests through that carry the token. A body is not read before.
pub async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.is_in(request.headers()) {
        return next.run(request).await;
    }
    let why = "this server needs its token: send the header Authorization: Bearer TOKEN";
    let mut answer = fresh((StatusCode::UNAUTHORIZED, Json(json!({"error": why}))));
    let headers = answer.headers_mut();
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    #[test]
    fn only_the_whole_token_opens() {
        let scratch = Scratch::new();
        let path = scratch.0.join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let (token, made) = Token::of_file(&path).unwrap();
        assert_eq!(made, None);
        for right in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef "] {
            assert!(token.is_in(&headers(right)), "{right}");
        }
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789ABCDEF",
            "Bearer ",
            "Bear",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
        ] {
            assert!(!token.is_in(&headers(wrong)), "{wrong}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
    }

    #[test]
    fn a_file_that_is_not_there_is_made_and_another_is_no_token() {
        let scratch = Scratch::new();
        let path = scratch.0.join("token");
        let (token, made) = Token::of_file(&path).unwrap();
        let made = made.expect("a new one");
        assert_eq!(made.len(), 64);
        let (again, told) = Token::of_file(&path).unwrap();
        assert_eq!((again.0, told), (token.0, None));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0);
        }
        for bad in ["", "short", "two words of some length", &"x".repeat(LONGEST + 1)] {
            std::fs::write(&path, bad).unwrap();
            let told = Token::of_file(&path).unwrap_err().to_string();
            assert!(told.contains("holds no token"), "{told}");
        }
    }
}
