//! Splitting a text into words before byte pairs are merged, by `tokenizer.ggml.pre`.
//!
//! Each scheme is a list of steps; every step splits each piece that the step before it left. The steps are the
//! alternatives of the original regular expressions, in their order, written out so that each takes linear time.
//! Nothing is dropped: the pieces joined are the text.
//!
//! Source: the expressions of the models' own `tokenizer.json` and their names in llama.cpp's `llama-vocab.cpp`.

use super::unicode::{Class, is_punctuation};

/// How the texts of a family of models are split.
#[derive(Debug)]
pub(super) struct Scheme {
    /// The values of `tokenizer.ggml.pre` that mean this scheme.
    pub(super) names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether a word that is a token is that token, whatever the merges would make of it.
    pub(super) whole_words: bool,
    /// Whether texts begin with BOS where the file does not say.
    pub(super) add_bos: bool,
}

/// The scheme of a file that names none.
pub(super) const DEFAULT_NAME: &str = "default";

/// All schemes. To add a model, add its name here, or a scheme with the steps of its expression.
static SCHEMES: [Scheme; 6] = [
    Scheme {
        names: &[DEFAULT_NAME],
        steps: &[Step::Punctuation, Step::Gpt2Words, Step::Numbers, Step::ThreeDigits],
        whole_words: false,
        add_bos: false,
    },
    Scheme {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "jina-es",
            "jina-de",
            "jina-v2-es",
        ],
        steps: &[Step::Gpt2Words],
        whole_words: false,
        add_bos: false,
    },
    Scheme {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        steps: &[Step::EachNumber, Step::Gpt2Words],
        whole_words: false,
        add_bos: false,
    },
    Scheme {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        steps: &[Step::Llama3Words { numbers: 3 }],
        whole_words: true,
        add_bos: true,
    },
    Scheme {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        steps: &[Step::Llama3Words { numbers: 3 }],
        whole_words: false,
        add_bos: false,
    },
    Scheme {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"],
        steps: &[Step::Llama3Words { numbers: 1 }],
        whole_words: false,
        add_bos: false,
    },
];

impl Scheme {
    /// The scheme of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.names.contains(&name))
    }

    /// All names, for messages.
    pub(super) fn known() -> String {
        SCHEMES.iter().flat_map(|scheme| scheme.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// Calls `word` with each word of `text`, in order.
    pub(super) fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        split(self.steps, text, word);
    }
}

fn split<'t>(steps: &[Step], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    let Some((step, later)) = steps.split_first() else { return word(text) };
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(step.first_piece(rest));
        debug_assert!(!piece.is_empty());
        split(later, piece, word);
        rest = after;
    }
}

/// One way to split a piece of text.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// `\p{N}`: each number alone.
    EachNumber,
    /// `\p{N}+`
    Numbers,
    /// `[0-9][0-9][0-9]`
    ThreeDigits,
    /// `[\p{P}\$\+<=>\^~\|]+`
    Punctuation,
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2Words,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,numbers}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3Words { numbers: usize },
}

impl Step {
    /// The bytes of the first piece of `text`, which is not empty.
    fn first_piece(self, text: &str) -> usize {
        match self {
            Self::EachNumber => match text.find(char::is_numeric) {
                Some(0) => first_char(text).len_utf8(),
                Some(at) => at,
                None => text.len(),
            },
            Self::Numbers => alternate(text, char::is_numeric),
            Self::ThreeDigits => {
                let three = |w: &[u8]| w.iter().all(u8::is_ascii_digit);
                match text.as_bytes().windows(3).position(three) {
                    Some(0) => 3,
                    Some(at) => at,
                    None => text.len(),
                }
            }
            Self::Punctuation => alternate(text, |c| is_punctuation(c) || "$+<=>^~|".contains(c)),
            Self::Gpt2Words => gpt2_word(text),
            Self::Llama3Words { numbers } => llama3_word(text, numbers),
        }
    }
}

fn first_char(text: &str) -> char {
    text.chars().next().expect("a piece is not empty")
}

/// The bytes of the longest start of `text` that is all of `class`.
fn run(text: &str, class: Class) -> usize {
    text.find(|c| Class::of(c) != class).unwrap_or(text.len())
}

/// The bytes of the longest start of `text` that is all in `set`, or all not in it.
fn alternate(text: &str, set: impl Fn(char) -> bool) -> usize {
    let inside = set(first_char(text));
    text.find(|c| set(c) != inside).unwrap_or(text.len())
}

/// The bytes of the English contraction that `text` begins with.
fn contraction(text: &str, ignore_case: bool) -> Option<usize> {
    let letters = text.strip_prefix('\'')?.as_bytes();
    let is = |ending: &str| {
        let start = letters.get(..ending.len());
        start.is_some_and(|s| {
            if ignore_case { s.eq_ignore_ascii_case(ending.as_bytes()) } else { s == ending.as_bytes() }
        })
    };
    let ending = ["s", "t", "re", "ve", "m", "ll", "d"].into_iter().find(|ending| is(ending))?;
    Some(1 + ending.len())
}

fn gpt2_word(text: &str) -> usize {
    if let Some(len) = contraction(text, false) {
        return len;
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    match body.chars().next().map(Class::of) {
        None | Some(Class::Space) => spaces(text),
        Some(class) => (text.len() - body.len()) + run(body, class),
    }
}

fn llama3_word(text: &str, numbers: usize) -> usize {
    if let Some(len) = contraction(text, true) {
        return len;
    }
    let first = first_char(text);
    let after = &text[first.len_utf8()..];
    let next = after.chars().next().map(Class::of);
    match Class::of(first) {
        Class::Letter => run(text, Class::Letter),
        Class::Number => text
            .char_indices()
            .take(numbers)
            .take_while(|(_, c)| c.is_numeric())
            .map(|(i, c)| i + c.len_utf8())
            .last()
            .expect("the first is a number"),
        _ if next == Some(Class::Letter) && !matches!(first, '\r' | '\n') => {
            first.len_utf8() + run(after, Class::Letter)
        }
        Class::Other => symbols(text),
        Class::Space if first == ' ' && next == Some(Class::Other) => 1 + symbols(after),
        Class::Space => {
            let blank = &text[..run(text, Class::Space)];
            match blank.rfind(['\r', '\n']) {
                Some(last) => last + 1,
                None => spaces(text),
            }
        }
    }
}

/// `[^\s\p{L}\p{N}]+[\r\n]*`
fn symbols(text: &str) -> usize {
    let symbols = run(text, Class::Other);
    let after = &text[symbols..];
    symbols + after.find(|c| !matches!(c, '\r' | '\n')).unwrap_or(after.len())
}

/// `\s+(?!\S)|\s+`: all spaces at the end of the text; else all but the last, which belongs to the word after it.
fn spaces(text: &str) -> usize {
    let all = run(text, Class::Space);
    if all == text.len() {
        return all;
    }
    match text[..all].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words<'t>(scheme: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = vec![];
        Scheme::find(scheme).expect("a known scheme").split(text, &mut |word| words.push(word));
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
    fn names_are_unique() {
        let mut names: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    proptest! {
        #[test]
        fn nothing_is_dropped(text in "[a'sl 1½\\n\\r\\t\\u{a0}.🙂é字$]{0,40}") {
            for scheme in &SCHEMES {
                let mut joined = String::new();
                scheme.split(&text, &mut |word| {
                    assert!(!word.is_empty());
                    joined.push_str(word);
                });
                prop_assert_eq!(&joined, &text);
            }
        }
    }
}
