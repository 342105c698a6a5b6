//! Splitting a text into words before byte pairs are merged, by `tokenizer.ggml.pre`.
//!
//! Each scheme is a list of steps; every step splits each piece that the step before it left. Nothing is dropped: the
//! pieces joined are the text. All takes linear time.

mod expression;
mod schemes;

use self::{
    expression::{Classes, Expression, Set, Sets, Text},
    schemes::SCHEMES,
};

/// How the texts of a family of models are split.
#[derive(Debug)]
pub(super) struct Scheme {
    /// The values of `tokenizer.ggml.pre` that mean this scheme.
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether a word that is a token is that token, whatever the merges would make of it.
    pub(super) whole_words: bool,
    /// Whether texts begin with BOS where the file does not say.
    pub(super) add_bos: bool,
}

/// The scheme of a file that names none.
pub(super) const DEFAULT_NAME: &str = "default";

/// Values of `tokenizer.ggml.pre` that are known and refused: their texts take another way than byte-level BPE.
const OTHER_ALGORITHMS: [&str; 4] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"];

/// One way to split a piece of text.
#[derive(Debug)]
enum Step {
    /// What matches one of these rules is a piece, and so is what lies between two matches.
    Split(&'static [&'static str]),
    /// Numbers are split into threes from their ends.
    Threes {
        /// The set of the digits.
        digits: &'static str,
        /// Whether a cut is made before the first digit of a number.
        before_first: Cut,
        /// Whether a cut is made after its last digit.
        after_last: bool,
        /// Leaves numbers as they are that a letter, a mark or an underscore follows.
        no_word_after: bool,
    },
}

/// Whether a cut is made before a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Always,
    Never,
    /// Where the number begins with three digits.
    IfThree,
}

/// `\w` as Oniguruma has it, the engine of the `tokenizers` library.
const WORD: &str = r"[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\u{B2}\u{B3}\u{B9}\u{BC}-\u{BE}\u{24B6}-\u{24E9}]";

impl Scheme {
    /// The scheme of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.names.contains(&name))
    }

    /// All names, sorted.
    pub(super) fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.names).copied().collect();
        names.sort_unstable();
        names
    }

    /// Whether the name is known, but its texts take another way than byte-level BPE.
    pub(super) fn is_another_algorithm(name: &str) -> bool {
        OTHER_ALGORITHMS.contains(&name)
    }
}

/// A scheme, ready to split texts.
pub(super) struct Splitter {
    classes: Classes,
    steps: Box<[ReadyStep]>,
}

enum ReadyStep {
    Split(Expression),
    Threes { digits: Set, before_first: Cut, after_last: bool, word_after: Option<Set> },
}

impl Splitter {
    pub(super) fn new(scheme: &Scheme) -> Self {
        let expressions = scheme.steps.iter().flat_map(|step| match step {
            Step::Split(rules) => rules.to_vec(),
            Step::Threes { digits, .. } => vec![*digits, WORD],
        });
        let (sets, classes) = Sets::new(expressions);
        let ready = |step: &Step| match *step {
            Step::Split(rules) => ReadyStep::Split(Expression::new(rules, &sets)),
            Step::Threes { digits, before_first, after_last, no_word_after } => ReadyStep::Threes {
                digits: sets.mask(digits),
                before_first,
                after_last,
                word_after: no_word_after.then(|| sets.mask(WORD)),
            },
        };
        Self { steps: scheme.steps.iter().map(ready).collect(), classes }
    }

    /// Calls `word` with each word of `text`, in order. None is empty.
    pub(super) fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        self.split_by(&self.steps, text, word);
    }

    fn split_by<'t>(&self, steps: &[ReadyStep], text: &'t str, word: &mut dyn FnMut(&'t str)) {
        let Some((step, later)) = steps.split_first() else { return word(text) };
        let piece = &mut |start, end| {
            if start < end {
                self.split_by(later, &text[start..end], word);
            }
        };
        let text = Text { text, classes: &self.classes };
        match step {
            ReadyStep::Split(expression) => {
                let mut done = 0;
                while let Some((start, end)) = expression.find(&text, done) {
                    piece(done, start);
                    piece(start, end);
                    done = end;
                }
                piece(done, text.text.len());
            }
            ReadyStep::Threes { digits, before_first, after_last, word_after } => {
                let mut done = 0;
                let mut cut = |at| piece(std::mem::replace(&mut done, at), at);
                let mut at = 0;
                while at < text.text.len() {
                    let (end, count) = text.run(*digits, at, u32::MAX);
                    if count == 0 || word_after.is_some_and(|set| text.holds(set, end)) {
                        at = end.max(text.after(at));
                        continue;
                    }
                    if *before_first == Cut::Always || *before_first == Cut::IfThree && count % 3 == 0 {
                        cut(at);
                    }
                    let (mut three, _) = text.run(*digits, at, if count % 3 == 0 { 3 } else { count % 3 });
                    while three < end {
                        cut(three);
                        three = text.run(*digits, three, 3).0;
                    }
                    if *after_last {
                        cut(end);
                    }
                    at = end;
                }
                cut(text.text.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words<'t>(scheme: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = vec![];
        let scheme = Scheme::find(scheme).expect("a known scheme");
        Splitter::new(scheme).split(text, &mut |word| words.push(word));
        words
    }

    #[test]
    fn gpt2() {
        assert_eq!(
            words("gpt-2", "I'll  go, OK?\n\n x1"),
            ["I", "'ll", " ", " go", ",", " OK", "?", "\n\n", " x", "1"]
        );
        assert_eq!(words("gpt-2", "I'LL"), ["I", "'", "LL"]);
        assert_eq!(words("gpt-2", "a  "), ["a", "  "]);
        assert_eq!(words("gpt-2", "a\nb"), ["a", "\n", "b"]);
        assert_eq!(words("gpt-2", " 's"), [" '", "s"]);
    }

    #[test]
    fn smollm_takes_numbers_out_first() {
        assert_eq!(words("smollm", "a  12b"), ["a", "  ", "1", "2", "b"]);
        assert_eq!(words("smollm", "x ½ y"), ["x", " ", "½", " y"]);
    }

    #[test]
    fn llama3() {
        assert_eq!(
            words("llama-bpe", "I'LL 12345!\n\n  x"),
            ["I", "'LL", " ", "123", "45", "!\n\n", " ", " x"]
        );
        assert_eq!(words("llama-bpe", "a \n\n b\n"), ["a", " \n\n", " b", "\n"]);
        assert_eq!(words("llama-bpe", "\tfoo (bar) ..."), ["\tfoo", " (", "bar", ")", " ..."]);
        assert_eq!(words("llama-bpe", "\n\nx"), ["\n\n", "x"]);
    }

    #[test]
    fn qwen2_takes_numbers_one_by_one() {
        assert_eq!(words("qwen2", "a 12"), ["a", " ", "1", "2"]);
    }

    #[test]
    fn default_takes_punctuation_and_threes_of_digits_out() {
        assert_eq!(words("default", "a+b 12345."), ["a", "+", "b", " ", "123", "45", "."]);
    }

    #[test]
    fn gpt4o_splits_where_small_letters_end() {
        assert_eq!(words("gpt-4o", "HTMLParser's ÉtéÉté"), ["HTMLParser's", " Été", "Été"]);
        assert_eq!(words("gpt-4o", "parseHTML a/\n"), ["parse", "HTML", " a", "/\n"]);
        assert_eq!(words("tekken", "it's"), ["it", "'s"]);
    }

    #[test]
    fn kimi_takes_han_out_and_deepseek_kana_too() {
        assert_eq!(words("kimi-k2", "abc汉字かな1234"), ["abc", "汉字", "かな", "123", "4"]);
        assert_eq!(words("deepseek-v3", "abc汉字かな1234"), ["abc", "汉字かな", "123", "4"]);
    }

    #[test]
    fn threes_are_counted_from_the_end_of_a_number() {
        assert_eq!(words("tiny_aya", "a 1234567."), ["a", " ", "1", "234", "567", "."]);
        assert_eq!(words("tiny_aya", "1234a"), ["123", "4", "a"], "no word ends there");
        assert_eq!(words("superbpe", "a1234b123"), ["a", "1", "234", "b", "123"]);
        assert_eq!(words("afmoe", "x1234567"), ["x", "1", "234", "567"]);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.names).collect();
        names.extend(&OTHER_ALGORITHMS);
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..Default::default() })]

        #[test]
        fn nothing_is_dropped(texts in prop::collection::vec("[a'sl 1½\\n\\r\\t\\u{a0}.🙂é字$]{0,40}", 20)) {
            for scheme in SCHEMES {
                let splitter = Splitter::new(scheme);
                for text in &texts {
                    let mut joined = String::new();
                    splitter.split(text, &mut |word| {
                        assert!(!word.is_empty());
                        joined.push_str(word);
                    });
                    prop_assert_eq!(&joined, text);
                }
            }
        }
    }
}
