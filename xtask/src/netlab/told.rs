//! What peers' JSON logs tell of their links. Read without a library: the fields that matter are texts without quotes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// One peer's log so far.
#[derive(Debug, Default)]
pub struct Log {
    /// Its name, once it is ready.
    name: Option<String>,
    ready: f64,
    /// When, whom, by which way; none: the link is gone.
    links: Vec<(f64, String, Option<String>)>,
    /// When, and the line, which names the members and tells what was passed on for others.
    rounds: Vec<(f64, String)>,
    /// The first line that tells of a member that failed or was put out.
    lost: Option<String>,
}

/// How two peers found to each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Their positions.
    pub ends: (usize, usize),
    /// None: not yet.
    pub way: Option<&'static str>,
    /// From when the later of the two was ready.
    pub seconds: f64,
    /// When both had their link, in seconds since midnight; not a number if they have none.
    pub linked: f64,
}

/// Bytes that were passed on for a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Relayed {
    /// Until it had a link, and a second longer: what was on its way then still arrives.
    pub before: u64,
    /// From then on.
    pub after: u64,
    /// Over this many seconds.
    pub seconds: f64,
}

impl Relayed {
    /// Whether nothing was passed on for a pair that had a link.
    pub fn stands_still(&self, way: &str) -> bool {
        way == "relayed" || (self.after == 0 && self.seconds > 0.0)
    }
}

impl fmt::Display for Relayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} kB", self.before as f64 / 1e3)?;
        match self.seconds > 0.0 {
            true => write!(f, ", then {} B in {:.1} s", self.after, self.seconds),
            false => Ok(()),
        }
    }
}

impl Log {
    /// As far as it goes; empty if there is none.
    pub fn read(path: &Path) -> Self {
        Self::of(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn of(text: &str) -> Self {
        let mut log = Self::default();
        for line in text.lines() {
            let Some(at) = field(line, "time").and_then(seconds) else {
                continue;
            };
            match field(line, "event") {
                Some("ready") if log.name.is_none() => {
                    log.name = field(line, "peer").map(str::to_owned);
                    log.ready = at;
                }
                Some("link") => {
                    let peer = field(line, "peer").unwrap_or_default().to_owned();
                    log.links.push((at, peer, field(line, "way").map(str::to_owned)));
                }
                Some("member") if matches!(field(line, "change"), Some("failed" | "evicted")) => {
                    log.lost.get_or_insert(line.to_owned());
                }
                Some("round") => log.rounds.push((at, line.to_owned())),
                _ => {}
            }
        }
        log
    }

    /// When it last told of a link to this peer.
    fn linked(&self, peer: &str) -> f64 {
        let mut up = self
            .links
            .iter()
            .filter(|(_, to, way)| to == peer && way.is_some());
        up.next_back().map_or(f64::NAN, |(at, ..)| *at)
    }
}

/// In how many rounds two or more have told of the same state, if they differ in none and nobody was lost.
pub fn agreed(logs: &[Log]) -> Result<usize, String> {
    let mut states: BTreeMap<u64, (&str, usize)> = BTreeMap::new();
    for log in logs {
        if let Some(line) = &log.lost {
            return Err(format!("somebody was lost: {line}"));
        }
        for (_, line) in &log.rounds {
            let (Some(number), Some(digest)) = (number(line, "round"), field(line, "digest")) else {
                continue;
            };
            let (known, times) = states.entry(number).or_insert((digest, 0));
            if *known != digest {
                return Err(format!("two states after round {number}"));
            }
            *times += 1;
        }
    }
    Ok(states.values().filter(|(_, times)| *times > 1).count())
}

/// The bytes that all members have relayed for this pair.
pub fn relayed(logs: &[Log], pair: &Pair) -> Relayed {
    let quiet = pair.linked + 1.0;
    let mut relayed = Relayed::default();
    for (at, line) in logs.iter().flat_map(|log| &log.rounds) {
        let bytes = number(line, "bytes_relayed").unwrap_or(0);
        match *at > quiet {
            true => {
                relayed.after += bytes;
                relayed.seconds = relayed.seconds.max(at - quiet);
            }
            false => relayed.before += bytes,
        }
    }
    relayed
}

/// All pairs.
pub fn pairs(logs: &[Log]) -> Vec<Pair> {
    let ends = (0..logs.len()).flat_map(|a| (a + 1..logs.len()).map(move |b| (a, b)));
    ends.map(|(a, b)| pair((a, b), &logs[a], &logs[b])).collect()
}

fn pair(ends: (usize, usize), one: &Log, other: &Log) -> Pair {
    let nothing = Pair {
        ends,
        way: None,
        seconds: f64::NAN,
        linked: f64::NAN,
    };
    let (Some(name), Some(other_name)) = (&one.name, &other.name) else {
        return nothing;
    };
    let ready = one.ready.max(other.ready);
    let mut links = one.links.iter().filter(|(_, peer, _)| peer == other_name);
    let link = links.next_back();
    if let Some((_, _, Some(way))) = link {
        let same =
            |(_, peer, by): &&(f64, String, Option<String>)| peer == other_name && by.as_ref() == Some(way);
        let since = one.links.iter().find(same).map_or(f64::NAN, |(at, ..)| *at);
        let way = ["direct", "mapped", "punched"]
            .into_iter()
            .find(|known| known == way);
        return Pair {
            ends,
            way,
            seconds: (since - ready).max(0.0),
            linked: one.linked(other_name).max(other.linked(name)),
        };
    }
    let both =
        |(_, line): &&(f64, String)| line.contains(name.as_str()) && line.contains(other_name.as_str());
    match one.rounds.iter().find(both) {
        Some((at, _)) => Pair {
            ends,
            way: Some("relayed"),
            seconds: (at - ready).max(0.0),
            ..nothing
        },
        None => nothing,
    }
}

/// A field that is a whole number.
fn number(line: &str, name: &str) -> Option<u64> {
    let (_, rest) = line.split_once(&format!("\"{name}\":"))?;
    rest.split([',', '}']).next()?.parse().ok()
}

/// A field that is a text.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

/// Seconds since midnight of `2026-11-20T13:20:00.250Z`. Nobody runs this at midnight twice.
fn seconds(time: &str) -> Option<f64> {
    let (_, clock) = time.split_once('T')?;
    let mut parts = clock.trim_end_matches('Z').split(':').map(str::parse::<f64>);
    let mut part = || parts.next()?.ok();
    Some(3600.0 * part()? + 60.0 * part()? + part()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str, lines: &[&str]) -> Log {
        let ready = format!(r#"{{"time":"2026-11-20T13:20:01.000Z","event":"ready","peer":"{name}"}}"#);
        Log::of(&format!("{ready}\n{}\n", lines.join("\n")))
    }

    #[test]
    fn a_pair_is_told_by_its_last_link_or_else_by_a_round_of_both() {
        let round =
            r#"{"time":"2026-11-20T13:20:03.500Z","event":"round","members":[{"peer":"aa"},{"peer":"bb"}]}"#;
        let up =
            r#"{"time":"2026-11-20T13:20:04.250Z","event":"link","peer":"bb","way":"punched","rtt_ms":1.0}"#;
        let down =
            r#"{"time":"2026-11-20T13:20:05.000Z","event":"link","peer":"bb","way":null,"rtt_ms":0.0}"#;
        let told = |lines: &[&str]| {
            let pair = pairs(&[log("aa", lines), log("bb", &[])]).remove(0);
            (pair.way, pair.seconds)
        };
        assert_eq!(told(&[]).0, None);
        assert_eq!(told(&[round]), (Some("relayed"), 2.5));
        assert_eq!(told(&[round, up]), (Some("punched"), 3.25));
        assert_eq!(told(&[round, up, down]), (Some("relayed"), 2.5));
        assert_eq!(told(&[round, up, down, up]), (Some("punched"), 3.25));
    }

    #[test]
    fn what_is_passed_on_before_and_after_a_link_is_told_apart() {
        let round = |second: &str, bytes: u32| {
            format!(
                r#"{{"time":"2026-11-20T13:20:{second}Z","event":"round","members":[{{"peer":"aa"}},{{"peer":"bb"}}],"bytes_relayed":{bytes}}}"#
            )
        };
        let up = |second: &str, peer: &str| {
            format!(
                r#"{{"time":"2026-11-20T13:20:{second}Z","event":"link","peer":"{peer}","way":"punched","rtt_ms":1.0}}"#
            )
        };
        let told = |late: u32| {
            let relay: Vec<String> = [("03.000", 70), ("05.500", 5), ("06.000", late), ("09.500", 0)]
                .map(|(second, bytes)| round(second, bytes))
                .into();
            let relay: Vec<&str> = relay.iter().map(String::as_str).collect();
            let logs = [
                log("aa", &[&up("04.000", "bb")]),
                log("bb", &[&up("04.500", "aa")]),
                log("cc", &relay),
            ];
            let pair = pairs(&logs).remove(0);
            relayed(&logs, &pair)
        };
        assert_eq!(
            told(0),
            Relayed {
                before: 75,
                after: 0,
                seconds: 4.0
            }
        );
        assert_eq!(told(9).after, 9);
        assert!(told(0).stands_still("punched") && !told(9).stands_still("punched"));
        let never = Relayed {
            before: 9,
            ..Relayed::default()
        };
        assert!(never.stands_still("relayed") && !never.stands_still("punched"));
    }

    #[test]
    fn states_that_differ_and_members_that_fail_are_noticed() {
        let round = |n: u32, digest: &str| {
            format!(
                r#"{{"time":"2026-11-20T13:20:03.500Z","event":"round","round":{n},"digest":"{digest}"}}"#
            )
        };
        let of = |lines: &[String]| log("aa", &lines.iter().map(String::as_str).collect::<Vec<_>>());
        let (one, two) = (
            of(&[round(1, "a"), round(2, "b")]),
            of(&[round(2, "b"), round(3, "c")]),
        );
        assert_eq!(agreed(&[one, two]), Ok(1));
        assert!(agreed(&[of(&[round(2, "b")]), of(&[round(2, "x")])]).is_err());
        let failed = r#"{"time":"2026-11-20T13:20:04.000Z","event":"member","peer":"bb","change":"failed"}"#;
        assert!(agreed(&[log("aa", &[failed])]).is_err());
    }
}
