//! Rules for one Rust file: its header, `unsafe` in kernels alone, nothing left unfinished.

use super::lexer::{lines_with_word, mask};
use super::{TextFile, Violation};

/// Compiled only to prove the bans, so it breaks them on purpose.
const CANARIES: &str = "xtask/canaries/";

/// Checks one file.
pub(crate) fn check(file: &TextFile) -> Vec<Violation> {
    let path = file.path.as_str();
    let masked = mask(&file.text);
    let mut violations = Vec::new();
    let mut complain = |line, what: &str| violations.push(Violation::new(path, line, what));

    let header = file.text.lines().next().and_then(|line| line.strip_prefix("//!"));
    if header.is_none_or(|text| text.trim().is_empty()) {
        complain(1, "does not open with `//!`: what it is, its invariants, its units");
    }
    if !path.starts_with("kernels/") {
        let is_crate_root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
        if is_crate_root && !masked.contains("#![forbid(unsafe_code)]") {
            complain(0, "lacks `#![forbid(unsafe_code)]`: `unsafe` is in kernels alone");
        }
        if !path.starts_with(CANARIES) {
            for line in lines_with_word(&masked, "unsafe") {
                complain(line, "`unsafe` outside kernels");
            }
        }
    }
    if !path.starts_with(CANARIES) {
        for (number, line) in masked.lines().enumerate() {
            for unfinished in ["todo!", "unimplemented!", "dbg!", "#[ignore"] {
                if line.contains(unfinished) {
                    complain(number + 1, &format!("`{unfinished}` is not an end state"));
                }
            }
        }
        for (number, line) in file.text.lines().enumerate() {
            // Cut in two, or this line would find itself.
            for mark in [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")] {
                if !lines_with_word(line, mark).is_empty() {
                    complain(number + 1, &format!("`{mark}`: do it, or file an issue"));
                }
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = TextFile { path: path.to_owned(), text: text.to_owned() };
        check(&file).into_iter().map(|violation| (violation.line, violation.what)).collect()
    }

    #[test]
    fn a_good_file_passes() {
        let text = "//! Says what it is; unsafe and todo! in a comment are words.\n#![forbid(unsafe_code)]\n\
            const S: &str = \"unsafe todo!\";\n";
        assert_eq!(complaints("engine/src/lib.rs", text), []);
        assert_eq!(complaints("kernels/src/x.rs", "//! X.\nunsafe fn f() {}\n"), []);
    }

    #[test]
    fn each_broken_rule_is_caught() {
        let bad = [
            ("engine/src/x.rs", "fn f() {}\n", 1, "`//!`"),
            ("engine/src/x.rs", "//!\nfn f() {}\n", 1, "`//!`"),
            ("engine/src/x.rs", "", 1, "`//!`"),
            ("engine/src/lib.rs", "//! Engine.\nfn f() {}\n", 0, "forbid"),
            ("daemon/src/main.rs", "//! Main.\n// #![forbid(unsafe_code)]\n", 0, "forbid"),
            ("engine/src/x.rs", "//! X.\nfn f() {\n    unsafe { g() }\n}\n", 3, "`unsafe`"),
            ("kernels/src/x.rs", "//! X.\nfn f() { todo!() }\n", 2, "todo!"),
            ("kernels/src/x.rs", "//! X.\n#[test]\n#[ignore]\nfn f() {}\n", 3, "#[ignore"),
            ("kernels/src/x.rs", concat!("//! X.\n// FIX", "ME later\n"), 2, concat!("FIX", "ME")),
        ];
        for (path, text, line, what) in bad {
            let found = complaints(path, text);
            assert!(
                found.len() == 1 && found[0].0 == line && found[0].1.contains(what),
                "{path}: {text:?} gave {found:?}"
            );
        }
    }
}
