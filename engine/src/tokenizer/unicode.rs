//! The character classes that pre-tokenizers are written in: `\p{L}`, `\p{N}`, `\s` and the rest.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// The four classes that the splitting rules tell apart. Each character is in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// None of these: punctuation, symbols, marks, controls.
    Other,
}

impl Class {
    /// The class of `c`.
    pub(super) fn of(c: char) -> Self {
        match c {
            'a'..='z' | 'A'..='Z' => Self::Letter,
            '0'..='9' => Self::Number,
            ' ' | '\t'..='\r' => Self::Space,
            '\0'..='\x7f' => Self::Other,
            _ if LETTERS.contains(c) => Self::Letter,
            _ if c.is_numeric() => Self::Number,
            _ if c.is_whitespace() => Self::Space,
            _ => Self::Other,
        }
    }
}

/// Whether `c` is punctuation: `\p{P}`.
pub(super) fn is_punctuation(c: char) -> bool {
    PUNCTUATION.contains(c)
}

static LETTERS: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"\p{L}"));
static PUNCTUATION: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"\p{P}"));

/// A bit for each code point.
struct CharSet(Box<[u64]>);

impl CharSet {
    fn new(class: &str) -> Self {
        let mut bits = vec![0u64; (char::MAX as usize + 1) / 64].into_boxed_slice();
        let hir = regex_syntax::parse(class).expect("a class that Unicode has");
        let HirKind::Class(HirClass::Unicode(class)) = hir.kind() else {
            unreachable!("a class of characters parses to one")
        };
        for code in class.ranges().iter().flat_map(|range| range.start()..=range.end()).map(|c| c as usize) {
            bits[code / 64] |= 1 << (code % 64);
        }
        Self(bits)
    }

    fn contains(&self, c: char) -> bool {
        self.0[c as usize / 64] >> (c as usize % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_known_characters() {
        for (chars, class) in [
            ("aZéßДא字한नǅʰª", Class::Letter),
            ("09½²٣Ⅷ①", Class::Number),
            (" \t\n\r\u{b}\u{c}\u{85}\u{a0}\u{2003}\u{3000}", Class::Space),
            ("'._-€\u{301}\u{200b}\u{200d}🙂\x00\x1f\x7f\u{fffd}", Class::Other),
        ] {
            for c in chars.chars() {
                assert_eq!(Class::of(c), class, "{c:?}");
            }
        }
    }

    #[test]
    fn ascii_is_as_the_tables_say() {
        for c in '\0'..='\x7f' {
            assert_eq!(Class::of(c) == Class::Letter, LETTERS.contains(c));
            assert_eq!(Class::of(c) == Class::Number, c.is_numeric());
            assert_eq!(Class::of(c) == Class::Space, c.is_whitespace());
        }
        assert!(is_punctuation('!') && is_punctuation('—') && !is_punctuation('$') && !is_punctuation('a'));
    }
}
