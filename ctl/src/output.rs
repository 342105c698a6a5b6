//! Writing results to stdout, notes to stderr.
//!
//! Invariant: text that a model made reaches a terminal without control characters (it could move the cursor or
//! type for the user); what is not a terminal gets it to the byte.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

/// Writes text to stdout and flushes it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::stdout)
}

/// Writes one line of JSON to stdout and flushes it.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string(value)
        .map_err(|error| Failure::Failed(format!("cannot print this as JSON: {error}")))?;
    line.push('\n');
    print(&line)
}

/// Text for a person at a terminal: control characters but line feed and tab become U+FFFD.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(bad) { text.replace(bad, "\u{fffd}").into() } else { text.into() }
}

/// Text that a model or a client made, for stdout.
pub(crate) fn foreign(text: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() { printable(text) } else { text.into() }
}

/// A bar on stderr that counts bytes; hidden when stderr is no terminal.
pub(crate) fn bytes_bar(label: &str, total: u64) -> ProgressBar {
    let template =
        "{prefix:<28} {bar:30} {binary_bytes:>11} of {binary_total_bytes:<11} {binary_bytes_per_sec}";
    let bar = ProgressBar::new(total);
    bar.set_style(
        ProgressStyle::with_template(template).expect("the template is constant").progress_chars("━━ "),
    );
    bar.set_prefix(label.to_owned());
    bar
}

/// A line on stderr that shows that something is going on; hidden when stderr is no terminal.
pub(crate) fn spinner(label: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{prefix} {elapsed}").expect("the template is constant");
    bar.set_style(style);
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(printable("plain\n\tétext"), "plain\n\tétext");
        assert_eq!(printable("\u{1b}[2Jx\r\u{9b}y\u{7f}"), "\u{fffd}[2Jx\u{fffd}\u{fffd}y\u{fffd}");
    }
}
