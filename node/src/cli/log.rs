//! `--log`: the trace on standard error, so that standard output stays what it is.

use std::io;
use std::str::FromStr;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// A choice of what to trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter(Targets);

impl FromStr for Filter {
    type Err = String;

    /// A level alone is this program's, not that of the libraries below it.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(level) = text.parse::<LevelFilter>() {
            return Ok(Self(Targets::new().with_target("annulus", level)));
        }
        // The parser would take a mistyped level for a module, and trace all of it.
        let is_clear = |part: &&str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
        match text.split(',').find(|part| !is_clear(part)) {
            Some(part) => Err(format!(
                "{part:?} is neither a level nor MODULE=LEVEL: write error, warn, info, debug or trace"
            )),
            None => text
                .parse()
                .map(Self)
                .map_err(|error: ParseError| error.to_string()),
        }
    }
}

/// Begins to write what the filter lets through. Without one nothing is written, and nothing is spent on it.
pub fn start(filter: Option<Filter>) {
    let Some(Filter(targets)) = filter else { return };
    // The library reports a failed write on standard error, and panics if that fails too.
    let layer = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .log_internal_errors(false);
    registry().with(layer.with_filter(targets)).init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_level_alone_is_ours_and_a_filter_is_taken_as_it_is() {
        let Filter(ours) = "debug".parse().unwrap();
        assert!(ours.would_enable("annulus::driver", &Level::DEBUG));
        assert!(!ours.would_enable("annulus::driver", &Level::TRACE));
        assert!(!ours.would_enable("quinn", &Level::ERROR));
        let Filter(mixed) = "annulus=trace,quinn=info".parse().unwrap();
        assert!(mixed.would_enable("annulus::driver", &Level::TRACE));
        assert!(mixed.would_enable("quinn::endpoint", &Level::INFO));
        assert!(!mixed.would_enable("rustls", &Level::ERROR));
    }

    #[test]
    fn a_misspelt_level_is_refused() {
        for text in ["debgu", "annulus=debug,quin", "annulus=loud"] {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
    }
}
