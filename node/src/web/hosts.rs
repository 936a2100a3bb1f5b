//! The names that a node answers to. They protect it from DNS rebinding: a foreign page lets its own name lead to this machine, and
//! the browser then lets that page read and use what is here. The `Host` header of such requests shows the foreign name.
//!
//! It must know nothing of the content of requests.

use axum::http::{HeaderMap, Uri, header::HOST, uri::Authority};
use std::net::IpAddr;

/// The names, beside addresses and localhost.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// The names that this node was given, as `HOST` or `HOST:PORT`.
    pub fn new<'a>(names: impl Iterator<Item = &'a String>) -> Self {
        let names = names.filter_map(|name| name.parse::<Authority>().ok());
        Self(names.map(|name| plain(name.host())).collect())
    }

    /// Whether a request is for this node; if not, the name that it is for. A request without a name is taken: every browser sends
    /// one.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let said = headers.get_all(HOST).iter().map(|value| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            text.parse().map_err(|_| text)
        });
        let asked = uri.authority().cloned().map(Ok);
        for name in asked.into_iter().chain(said) {
            let name: Result<Authority, String> = name;
            let name = plain(name?.host());
            if !self.knows(&name) {
                return Err(name);
            }
        }
        Ok(())
    }

    fn knows(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        // A page that has an address for its name got it from that very address.
        bare.unwrap_or(name).parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.0.iter().any(|known| known == name)
    }
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
            assert_eq!(check("/", said), Err(name.to_owned()));
        }
        assert_eq!(
            check("http://evil.example/", &["localhost"]),
            Err("evil.example".to_owned())
        );
        assert_eq!(check("/", &[]), Ok(()));
    }
}
