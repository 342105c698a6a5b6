//! What a suite prints: lines of TAP, "ok - NAME" or "not ok - NAME", each with lines about it.

/// The results so far.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// Whether lines that are no result are shown: after a failed one.
    pub(super) shows: bool,
}

impl Counts {
    /// Takes one line; whether it is worth showing.
    pub(super) fn read(&mut self, line: &str) -> bool {
        if line.starts_with("not ok ") {
            self.failed += 1;
            self.shows = true;
        } else if line.starts_with("ok ") {
            // A test that was skipped has made no call, and nobody would see it.
            self.shows = line.contains("# SKIP");
            *(if self.shows { &mut self.failed } else { &mut self.passed }) += 1;
        } else {
            // Node.js announces each test before its result.
            return self.shows && !line.starts_with("# Subtest");
        }
        true
    }

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// All of them.
    pub(super) fn calls(&self) -> usize {
        self.passed + self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_and_failures_shown_in_full() {
        let mut counts = Counts::default();
        let lines = [
            "TAP version 13",
            "# Subtest: a",
            "ok 1 - a",
            "  ---",
            "not ok 2 - b",
            "  error: 'x'",
            "ok 3 - c",
            "1..3",
        ];
        let shown: Vec<&str> = lines.into_iter().filter(|line| counts.read(line)).collect();
        assert_eq!(shown, ["ok 1 - a", "not ok 2 - b", "  error: 'x'", "ok 3 - c"]);
        assert_eq!((counts.passed, counts.failed, counts.calls()), (2, 1, 3));
    }

    #[test]
    fn a_skipped_test_has_failed() {
        let mut counts = Counts::default();
        counts.read("ok 1 - a # SKIP not today");
        assert_eq!((counts.passed, counts.failed), (0, 1));
    }
}
