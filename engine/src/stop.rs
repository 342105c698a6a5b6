//! Stop strings in streamed text: nothing of a stop is ever shown, however the text is cut into pieces.
//!
//! The stop that starts earliest in the whole text wins; the text before it is the result. Text that may be the start
//! of a stop is held back until that is decided, so what is streamed equals what a search of the whole text gives.
//!
//! Invariant: between calls `held` is empty or a proper prefix of a stop.

use thiserror::Error;

use crate::detokenizer::TOKEN_BYTES;

/// Most stop strings a request may have.
pub const MAX_STOPS: usize = 64;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Why stop strings are refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StopError {
    /// More than [`MAX_STOPS`].
    #[error("{count} stop strings given, must be at most {MAX_STOPS}")]
    TooMany {
        /// Strings given.
        count: usize,
    },
    /// Empty, which would match everywhere, or longer than [`MAX_STOP_BYTES`].
    #[error("stop string {index} has {bytes} bytes, must have from 1 to {MAX_STOP_BYTES}")]
    Length {
        /// Its place in the list, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
}

/// Watches one text for its stop strings.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// The place in the list of the stop that was hit.
    matched: Option<usize>,
}

/// What a position of the held text is.
enum Found {
    Nothing,
    /// All of a stop begins at `start`.
    Stop {
        start: usize,
        index: usize,
    },
    /// The text ends here within a stop.
    Beginning(usize),
}

impl StopStrings {
    /// Checks the list's bounds; an empty list lets all text through.
    pub fn new(stops: Vec<String>) -> Result<Self, StopError> {
        if stops.len() > MAX_STOPS {
            return Err(StopError::TooMany { count: stops.len() });
        }
        if let Some(index) = stops.iter().position(|stop| !(1..=MAX_STOP_BYTES).contains(&stop.len())) {
            return Err(StopError::Length { index, bytes: stops[index].len() });
        }
        // What may begin a stop, and a token's text.
        let most = stops.iter().map(String::len).max().unwrap_or(0) + TOKEN_BYTES;
        Ok(Self { stops, held: String::with_capacity(most), matched: None })
    }

    /// Takes the next piece of text and appends to `out` what is safe to show. True once a stop was hit: the text is
    /// over, and later pieces are ignored.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.is_stopped() {
            return true;
        }
        self.held.push_str(text);
        let shown = match self.first(true) {
            Found::Nothing => self.held.len(),
            Found::Beginning(start) => start,
            Found::Stop { start, index } => {
                self.matched = Some(index);
                start
            }
        };
        out.push_str(&self.held[..shown]);
        if self.is_stopped() {
            self.held.clear();
        } else {
            self.held.drain(..shown);
        }
        self.is_stopped()
    }

    /// The place in the list of the stop that ended the text: of those that start earliest the first in the list.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    fn is_stopped(&self) -> bool {
        self.matched.is_some()
    }

    /// The stop strings, in the order given.
    pub fn stops(&self) -> &[String] {
        &self.stops
    }

    /// What is held back just now: text that may yet turn out to begin a stop.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// The text is over: appends to `out` what was held back, up to a stop if there is one in it (then true).
    pub fn finish(&mut self, out: &mut String) -> bool {
        let shown = match self.first(false) {
            Found::Stop { start, index } => {
                self.matched = Some(index);
                start
            }
            _ => self.held.len(),
        };
        out.push_str(&self.held[..shown]);
        self.held.clear();
        self.is_stopped()
    }

    /// The earliest stop in the held text, or where it may yet begin if `more_may_come`.
    fn first(&self, more_may_come: bool) -> Found {
        let held = self.held.as_bytes();
        for start in 0..held.len() {
            let rest = &held[start..];
            let mut is_beginning = false;
            for (index, stop) in self.stops.iter().enumerate() {
                if rest.starts_with(stop.as_bytes()) {
                    return Found::Stop { start, index };
                }
                is_beginning |= stop.as_bytes().starts_with(rest);
            }
            if is_beginning && more_may_come {
                return Found::Beginning(start);
            }
        }
        Found::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_STOP_BYTES, MAX_STOPS, StopError, StopStrings};
    use proptest::prelude::*;

    /// The whole text at once: everything before the earliest stop, and whether there is one.
    fn twin(stops: &[String], text: &str) -> (String, bool) {
        let start = stops.iter().filter_map(|stop| text.find(stop)).min();
        (text[..start.unwrap_or(text.len())].to_string(), start.is_some())
    }

    fn stream(stops: &[String], pieces: &[String]) -> (String, bool) {
        let mut watcher = StopStrings::new(stops.to_vec()).unwrap();
        let mut out = String::new();
        for piece in pieces {
            if watcher.push(piece, &mut out) {
                return (out, true);
            }
            // No more than can be part of a stop is held back.
            let is_needed =
                stops.iter().any(|stop| stop.len() > watcher.held.len() && stop.starts_with(&watcher.held));
            assert!(watcher.held.is_empty() || is_needed, "held {:?}", watcher.held);
        }
        let stopped = watcher.finish(&mut out);
        (out, stopped)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn streamed_equals_whole(
            stops in prop::collection::vec("[abé]{1,5}", 0..4),
            pieces in prop::collection::vec("[abé]{0,4}", 0..10),
        ) {
            prop_assert_eq!(stream(&stops, &pieces), twin(&stops, &pieces.concat()));
        }
    }

    fn texts(of: &[&str]) -> Vec<String> {
        of.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn spans_pieces_and_overlaps() {
        assert_eq!(stream(&texts(&["</s>"]), &texts(&["hi <", "/s", "> more"])), ("hi ".into(), true));
        assert_eq!(stream(&texts(&["</s>"]), &texts(&["hi <", "/s"])), ("hi </s".into(), false));
        assert_eq!(stream(&texts(&["aab"]), &texts(&["a", "a", "a", "b"])), ("a".into(), true));
        // "bc" is complete first, but a stop that started before it may follow.
        assert_eq!(stream(&texts(&["bc", "abcd"]), &texts(&["xabc", "d"])), ("x".into(), true));
        assert_eq!(stream(&texts(&["bc", "abcd"]), &texts(&["xabc", "e"])), ("xa".into(), true));
        assert_eq!(stream(&texts(&["bc", "abcd"]), &texts(&["xabc"])), ("xa".into(), true));
    }

    #[test]
    fn after_a_stop_nothing_is_shown() {
        let mut watcher = StopStrings::new(texts(&["."])).unwrap();
        let mut out = String::new();
        assert!(watcher.push("a.b", &mut out));
        assert!(watcher.push("c", &mut out));
        assert!(watcher.finish(&mut out));
        assert_eq!((out.as_str(), watcher.matched()), ("a", Some(0)));
    }

    #[test]
    fn says_which_stop_it_was() {
        for (text, expected) in [("x", None), ("xbc", Some(0)), ("xabcd", Some(1)), ("xab.", Some(2))] {
            let mut watcher = StopStrings::new(texts(&["bc", "abcd", "ab", "ab."])).unwrap();
            let mut out = String::new();
            watcher.push(text, &mut out);
            watcher.finish(&mut out);
            assert_eq!(watcher.matched(), expected, "{text}");
        }
    }

    #[test]
    fn bounds_are_named() {
        let refused = |stops: Vec<String>| StopStrings::new(stops).unwrap_err();
        assert_eq!(
            refused(vec![String::from("x"); MAX_STOPS + 1]),
            StopError::TooMany { count: MAX_STOPS + 1 }
        );
        assert_eq!(refused(texts(&["x", ""])), StopError::Length { index: 1, bytes: 0 });
        let long = "x".repeat(MAX_STOP_BYTES + 1);
        assert_eq!(refused(vec![long]).to_string(), "stop string 0 has 1025 bytes, must have from 1 to 1024");
    }
}
