//! The names that a server answers to. They protect it from DNS rebinding: a foreign page lets its own name lead to this machine, and
//! the browser then lets that page read and use what is here. The `Host` header of such requests shows the foreign name.
//!
//! A server that asks for no token also looks at the `Origin` header: without it, any page could have its requests worked on, though
//! not read the answers.
//!
//! It must know nothing of the content of requests.

use axum::http::{
    HeaderMap, HeaderName, StatusCode, Uri,
    header::{HOST, ORIGIN},
    uri::Authority,
};
use std::net::IpAddr;

/// The names that a server answers to, and the pages.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
    /// Whether no addresses count but loopback ones, and no pages but the server's own.
    only_here: bool,
}

/// Why a request is not for a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It is for this name.
    #[error("this server does not answer to the name {0:?}, as another site could use that name to reach it")]
    Name(String),
    /// A page of this origin sent it.
    #[error(
        "this server does not answer to pages of {0:?}, as it takes requests only from programs and from its own page"
    )]
    Page(String),
}

impl Denied {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Name(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Page(_) => StatusCode::FORBIDDEN,
        }
    }
}

impl Hosts {
    /// Any address, localhost, and the names that this node was given, as `HOST` or `HOST:PORT`.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        let names = names
            .into_iter()
            .filter_map(|name| name.parse::<Authority>().ok());
        Self {
            names: names.map(|name| plain(name.host())).collect(),
            only_here: false,
        }
    }

    /// Loopback addresses, localhost, and the names that this server was given; pages of other origins get no answer.
    pub fn only_here<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        Self {
            only_here: true,
            ..Self::new(names)
        }
    }

    /// Whether a request is for this server. A request without a name is taken: every browser sends one.
    ///
    /// # Errors
    ///
    /// If not, why.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        let said = headers.get_all(HOST).iter().map(|value| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            text.parse().map_err(|_| text)
        });
        let asked = uri.authority().cloned().map(Ok);
        for name in asked.into_iter().chain(said) {
            let name: Result<Authority, String> = name;
            let name = plain(name.map_err(Denied::Name)?.host());
            if !self.knows(&name) {
                return Err(Denied::Name(name));
            }
        }
        match headers.get_all(ORIGIN).iter().next_back() {
            Some(page) if self.only_here && !of_own_page(headers) => Err(Denied::Page(
                String::from_utf8_lossy(page.as_bytes()).into_owned(),
            )),
            _ => Ok(()),
        }
    }

    fn knows(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        // A page that has an address for its name got it from that very address.
        let of_any = || bare.unwrap_or(name).parse::<IpAddr>().is_ok() || name.ends_with(".localhost");
        is_loopback(name) || self.names.iter().any(|known| known == name) || (!self.only_here && of_any())
    }
}

/// Whether a request comes from the page that the server itself sent to the browser, by its `Host` and `Origin`. Browsers send the
/// origin with every request that may change something, and no page can send another one.
pub fn of_own_page(headers: &HeaderMap) -> bool {
    let (host, origin) = (only(headers, &HOST), only(headers, &ORIGIN));
    let page = origin.and_then(|origin| origin.strip_prefix("http://").or(origin.strip_prefix("https://")));
    page.zip(host)
        .is_some_and(|(page, host)| page.eq_ignore_ascii_case(host))
}

/// The value of a header that is there once.
pub fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Whether a host means this machine on any machine. Names below localhost do not count: some browsers ask the network for them.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let ip = bare.unwrap_or(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// As names are compared.
fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_node_answers_to_its_own_names() {
        let given = [
            "Train.example.org".to_owned(),
            "lab:4433".to_owned(),
            "192.0.2.1:1".to_owned(),
        ];
        let hosts = Hosts::new(given.iter());
        let check = |uri: &str, said: &[&str]| {
            let mut headers = HeaderMap::new();
            for name in said {
                headers.append(HOST, HeaderValue::from_str(name).unwrap());
            }
            hosts.check(&uri.parse().unwrap(), &headers)
        };
        for name in [
            "localhost",
            "LOCALHOST:4433",
            "a.localhost",
            "127.0.0.1:4433",
            "203.0.113.9",
            "[::1]:4433",
            "[2001:db8::1]",
            "train.example.org:4433",
            "train.example.org.",
            "lab",
        ] {
            assert_eq!(check("/", &[name]), Ok(()), "{name}");
        }
        for (said, name) in [
            (&["evil.example:4433"][..], "evil.example"),
            (&["localhost.evil.example"], "localhost.evil.example"),
            (&["example.org"], "example.org"),
            (&["localhost", "evil.example"], "evil.example"),
            (&["127.0.0.1.evil.example"], "127.0.0.1.evil.example"),
            (&["a b"], "a b"),
            (&[""], ""),
        ] {
            assert_eq!(check("/", said), Err(Denied::Name(name.to_owned())));
        }
        assert_eq!(
            check("http://evil.example/", &["localhost"]),
            Err(Denied::Name("evil.example".to_owned()))
        );
        assert_eq!(check("/", &[]), Ok(()));
    }

    #[test]
    fn a_server_without_a_token_answers_to_this_machine_and_its_own_page() {
        let given = ["Lab:8080".to_owned()];
        let hosts = Hosts::only_here(&given);
        let check = |said: &[(HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in said {
                headers.append(name, HeaderValue::from_str(value).unwrap());
            }
            hosts.check(&Uri::from_static("/"), &headers)
        };
        for name in [
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "127.0.0.1:8080",
            "127.0.1.1",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "lab",
        ] {
            assert_eq!(check(&[(HOST, name)]), Ok(()), "{name}");
        }
        for name in [
            "evil.example",
            "203.0.113.9",
            "[2001:db8::1]",
            "0.0.0.0",
            "a.localhost",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(check(&[(HOST, name)]), Err(Denied::Name(name.to_owned())));
        }
        let own = (HOST, "localhost:8080");
        for page in ["http://localhost:8080", "https://LOCALHOST:8080"] {
            assert_eq!(check(&[own.clone(), (ORIGIN, page)]), Ok(()), "{page}");
        }
        for page in [
            "null",
            "",
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "http://127.0.0.1:8080",
            "file://localhost:8080",
        ] {
            assert_eq!(
                check(&[own.clone(), (ORIGIN, page)]),
                Err(Denied::Page(page.to_owned()))
            );
        }
        let twice = [
            own,
            (ORIGIN, "http://localhost:8080"),
            (ORIGIN, "http://evil.example"),
        ];
        assert_eq!(check(&twice), Err(Denied::Page("http://evil.example".to_owned())));
        assert_eq!(check(&[]), Ok(()));
    }
}
