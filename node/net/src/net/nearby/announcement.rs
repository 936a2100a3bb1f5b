//! What a member announces to its network about a run that others may join, and what it reads from others.
//!
//! Others may announce anything. Nonsense is dropped, and the rest is short and safe to print.

use super::code::Tag;
use crate::net::addresses::is_for_one_link;
use annulus_core::wire::VERSION;
use annulus_core::{PeerId, RunId};
use std::net::{IpAddr, SocketAddr};

/// Longest task name, in characters.
const MAX_TASK: usize = 32;

/// Most addresses of one member.
const MAX_ADDRESSES: usize = 8;

/// A member's announcement of its run. Names are the first eight hexadecimal digits, as people see them everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Version of the protocol.
    pub version: u16,
    /// The run.
    pub run: String,
    /// What it trains.
    pub task: String,
    /// The member.
    pub peer: String,
    /// How many members it has.
    pub members: u32,
    /// How its code begins.
    pub tag: Tag,
}

impl Announcement {
    /// An announcement by one of a run's members.
    pub fn new(run: RunId, task: &str, peer: PeerId, members: usize, tag: Tag) -> Self {
        Self {
            version: VERSION,
            run: run.to_string(),
            task: task_name(task),
            peer: peer.to_string(),
            members: members.try_into().unwrap_or(u32::MAX),
            tag,
        }
    }

    /// As keys and values.
    pub fn properties(&self) -> [(&'static str, String); 6] {
        [
            ("version", self.version.to_string()),
            ("run", self.run.clone()),
            ("task", self.task.clone()),
            ("peer", self.peer.clone()),
            ("members", self.members.to_string()),
            ("code", self.tag.to_string()),
        ]
    }

    /// Reads an announcement. None if it makes no sense.
    pub fn read<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        Some(Self {
            version: value("version")?.parse().ok()?,
            run: short_name(value("run")?)?,
            task: task_name(value("task")?),
            peer: short_name(value("peer")?)?,
            members: value("members")?.parse().ok()?,
            tag: value("code")?.parse().ok()?,
        })
    }
}

/// A member that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its announcement.
    pub told: Announcement,
    /// Its addresses; at least one.
    pub at: Vec<SocketAddr>,
}

impl Found {
    /// A member with this announcement, if it can be dialled. Link-local addresses go last.
    pub fn new(told: Announcement, at: impl IntoIterator<Item = SocketAddr>) -> Option<Self> {
        let usable = |at: &SocketAddr| is_told(at.ip()) && at.port() > 0;
        let mut at: Vec<SocketAddr> = at.into_iter().filter(usable).collect();
        at.sort_unstable_by_key(|at| (is_for_one_link(at.ip()), *at));
        at.dedup();
        at.truncate(MAX_ADDRESSES);
        (!at.is_empty()).then_some(Self { told, at })
    }
}

/// Whether others on the network can use an address.
pub fn is_told(ip: IpAddr) -> bool {
    let of_many = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    !of_many && !ip.is_loopback() && !ip.is_unspecified()
}

/// The first eight hexadecimal digits of a name.
fn short_name(text: &str) -> Option<String> {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    (text.len() == 8 && text.chars().all(is_digit)).then(|| text.to_owned())
}

/// A task's name as an announcement holds it: short, and of ASCII that any terminal shows.
fn task_name(name: &str) -> String {
    let kept = name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' });
    kept.take(MAX_TASK).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::nearby::code::Code;
    use std::collections::HashMap;

    fn told(members: usize) -> (Announcement, Code) {
        let code = Code::generate();
        let told = Announcement::new(
            RunId([0xab; 32]),
            "digits",
            PeerId([0xcd; 32]),
            members,
            code.tag(),
        );
        (told, code)
    }

    fn read(properties: &HashMap<&str, String>) -> Option<Announcement> {
        Announcement::read(|key| properties.get(key).map(String::as_str))
    }

    #[test]
    fn what_is_told_comes_back_and_lets_nobody_in() {
        let (told, code) = told(3);
        let properties: HashMap<&str, String> = told.properties().into();
        assert_eq!(read(&properties), Some(told));
        let all = properties.values().cloned().collect::<Vec<_>>().join(" ");
        let code = code.to_string();
        assert!(
            !all.contains(&code[3..]) && !all.contains(&code[3..].replace('-', "")),
            "{all}"
        );
        // Names are as short as people see them everywhere.
        assert!(all.contains("abababab") && !all.contains("ababababab"), "{all}");
    }

    #[test]
    fn what_makes_no_sense_is_dropped_and_the_rest_is_safe_to_print() {
        let good: HashMap<&str, String> = told(3).0.properties().into();
        let with = |key: &'static str, value: &str| {
            let mut properties = good.clone();
            properties.insert(key, value.into());
            read(&properties)
        };
        for (key, value) in [
            ("version", "x"),
            ("version", "65536"),
            ("run", "abc"),
            ("run", "abababab0"),
            ("run", "\u{1b}[2Jabcd"),
            ("peer", "ABABABAB"),
            ("members", "-1"),
            ("members", "4294967296"),
            ("code", "123"),
        ] {
            assert_eq!(with(key, value), None, "{key}={value}");
            let mut properties = good.clone();
            properties.remove(key);
            assert_eq!(read(&properties), None, "without {key}");
        }
        let hostile = with("task", &format!("a\u{1b}[31m\n{}", "x".repeat(200))).unwrap();
        assert!(
            hostile.task.starts_with("a?[31m?x") && hostile.task.len() == MAX_TASK,
            "{hostile:?}"
        );
    }

    #[test]
    fn found_is_who_can_be_dialled() {
        let found = |ips: &[&str], port| {
            let at = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
            Found::new(told(1).0, at).map(|found| found.at)
        };
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(
            found(
                &[
                    "192.0.2.2",
                    "fe80::1",
                    "127.0.0.1",
                    "2001:db8::1",
                    "192.0.2.2",
                    "192.0.2.1"
                ],
                7
            ),
            Some(vec![
                at("192.0.2.1:7"),
                at("192.0.2.2:7"),
                at("[2001:db8::1]:7"),
                at("[fe80::1]:7")
            ])
        );
        assert_eq!(found(&["192.0.2.1"], 0), None);
        assert_eq!(found(&["127.0.0.1", "::", "224.0.0.1"], 7), None);
        let many: Vec<String> = (1..100).map(|i| format!("10.0.0.{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(found(&many, 7).unwrap().len(), MAX_ADDRESSES);
    }
}
