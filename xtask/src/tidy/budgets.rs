//! Line budgets: a file has at most 800 lines, a function at most 70.

use super::lexer::{functions, mask};
use super::{TextFile, Violation};

const MAX_FILE_LINES: usize = 800;
const MAX_FUNCTION_LINES: usize = 70;

/// Files over the budget and how many lines each may have. The list only shrinks: lower a number when the file got
/// shorter, take the line out when it fits, and split a file rather than add one.
const LONG_FILES: [(&str, usize); 0] = [];

/// Files over the budget, and exceptions that have become too generous.
pub(crate) fn check_files(rust: &[&TextFile]) -> Vec<Violation> {
    let counts: Vec<(&str, usize)> = rust.iter().map(|file| (file.path.as_str(), lines(file))).collect();
    check_counts(&counts, &LONG_FILES)
}

/// One note for each function over the budget.
pub(crate) fn long_functions(rust: &[&TextFile]) -> Vec<String> {
    let mut notes = Vec::new();
    for file in rust {
        for function in functions(&mask(&file.text)) {
            if function.lines > MAX_FUNCTION_LINES {
                let (path, line) = (&file.path, function.line);
                notes.push(format!("{path}:{line}: fn {} has {} lines", function.name, function.lines));
            }
        }
    }
    notes
}

/// The counts in one line.
pub(crate) fn summary(rust: &[&TextFile]) -> String {
    let total: usize = rust.iter().map(|file| lines(file)).sum();
    let longest = rust.iter().max_by_key(|file| lines(file));
    let longest =
        longest.map_or_else(String::new, |file| format!("; longest {} ({})", file.path, lines(file)));
    format!(
        "{} Rust files, {total} lines{longest}; {} functions over {MAX_FUNCTION_LINES} lines",
        rust.len(),
        long_functions(rust).len()
    )
}

fn lines(file: &TextFile) -> usize {
    file.text.lines().count()
}

fn check_counts(counts: &[(&str, usize)], exceptions: &[(&str, usize)]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for &(path, lines) in counts {
        let exception = exceptions.iter().find(|(name, _)| *name == path).map(|(_, allowed)| *allowed);
        let what = match exception {
            None if lines > MAX_FILE_LINES => {
                format!("{lines} lines, over the budget of {MAX_FILE_LINES}: split it")
            }
            Some(_) if lines <= MAX_FILE_LINES => "fits the budget now: take it out of LONG_FILES".to_owned(),
            Some(allowed) if lines > allowed => {
                format!("{lines} lines, and its exception is {allowed}: split it")
            }
            Some(allowed) if lines < allowed => {
                format!("shrank to {lines} lines: lower its exception of {allowed}")
            }
            _ => continue,
        };
        violations.push(Violation::new(path, 0, what));
    }
    for (path, _) in exceptions {
        if !counts.iter().any(|(name, _)| name == path) {
            violations.push(Violation::new(path, 0, "is gone: take it out of LONG_FILES"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_over_budget_are_caught_and_exceptions_only_shrink() {
        assert_eq!(check_counts(&[("a.rs", 800)], &[]), []);
        assert_eq!(check_counts(&[("a.rs", 900)], &[("a.rs", 900)]), []);
        let bad = [
            (Some(801), None, "split it"),
            (Some(901), Some(900), "split it"),
            (Some(899), Some(900), "lower"),
            (Some(700), Some(900), "take it out"),
            (None, Some(900), "is gone"),
        ];
        for (lines, allowed, what) in bad {
            let list = |lines: Option<usize>| Vec::from_iter(lines.map(|lines| ("a.rs", lines)));
            let found = check_counts(&list(lines), &list(allowed));
            assert!(found.len() == 1 && found[0].what.contains(what), "{lines:?} gave {found:?}");
        }
    }

    #[test]
    fn long_functions_are_reported() {
        let body = "    x();\n".repeat(MAX_FUNCTION_LINES - 1);
        let file =
            |body: &str| TextFile { path: "a.rs".to_owned(), text: format!("//! A.\nfn f() {{\n{body}}}\n") };
        assert_eq!(long_functions(&[&file(&body)]), ["a.rs:2: fn f has 71 lines"]);
        assert_eq!(long_functions(&[&file(&body[9..])]), [""; 0]);
    }
}
