//! Tokens that are found in a text as they stand, before the model's own rules, and those that end a generation.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::{
    error::VocabularyFault,
    vocabulary::{TokenKind, Vocabulary},
};

/// Tokens that end a turn or a text in some family of models. A model that was trained with one emits it where it is
/// done, and files forget to name more than one; they also forget to mark them as control tokens.
const END_NAMES: [&str; 18] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|flush|>",
    "<|calls|>",
    "[EOS]",
    "[e~[",
];

/// Tokens that end a generation only where the file marks them as control tokens: in other files they are plain text
/// (`</s>` is an HTML tag to gemma). The last three separate files where code is filled in.
const END_NAMES_IF_CONTROL: [&str; 4] = ["</s>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];

/// A control token also where the file does not say so, as in the reference implementation.
const STRAY_CONTROL_NAME: &str = "</s>";

/// Bytes of all special tokens together. Gemma's six thousand have under 100 KiB; the automaton takes tens of times more.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Marks tokens as control tokens that are so by name, and gives the ids that end a generation, sorted.
/// `named` are the ids that the file itself names as ends.
pub(super) fn ends_of_generation(
    vocabulary: &mut Vocabulary,
    named: impl IntoIterator<Item = u32>,
) -> Box<[u32]> {
    let mut ends: Vec<u32> = named.into_iter().collect();
    let if_control = END_NAMES_IF_CONTROL.iter().filter_map(|name| vocabulary.find(name.as_bytes()));
    ends.extend(if_control.filter(|&id| vocabulary.kind(id) == TokenKind::Control));
    // In the harmony format, and in that of Solar, `<|end|>` ends a message, of which an answer has several.
    let has = |name: &str| vocabulary.find(name.as_bytes()).is_some();
    let harmony = has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
    for name in END_NAMES {
        let Some(id) = vocabulary.find(name.as_bytes()) else { continue };
        vocabulary.set_control(id);
        if !(harmony && name == "<|end|>") {
            ends.push(id);
        }
    }
    if let Some(id) = vocabulary.find(STRAY_CONTROL_NAME.as_bytes()) {
        vocabulary.set_control(id);
    }
    ends.sort_unstable();
    ends.dedup();
    ends.into()
}

/// The token that ends a turn, by name.
pub(super) fn end_of_turn(vocabulary: &Vocabulary) -> Option<u32> {
    END_NAMES[..5].iter().find_map(|name| vocabulary.find(name.as_bytes()))
}

/// Whether models of this name want the spaces behind a special token gone, of which their GGUF files say nothing: those
/// of Phi-3, as llama.cpp's `llama-vocab.cpp` knows.
pub(super) fn strips_spaces_behind(model_name: &str) -> bool {
    let name = model_name.to_ascii_lowercase();
    name.contains("phi-3") || name.contains("phi3")
}

/// Special tokens of those models that keep the spaces behind them.
const KEEPS_SPACES: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    /// Text without special tokens; not empty.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

/// Finds special tokens in texts: at each place the longest, in one pass.
pub(super) struct SpecialTokens {
    /// Those that are found always.
    user_defined: Finder,
    /// These, and those that are found only where the text is trusted to hold them.
    all: Finder,
}

impl SpecialTokens {
    /// With `strip_spaces`, spaces behind most special tokens are left out of the parts.
    pub(super) fn new(vocabulary: &Vocabulary, strip_spaces: bool) -> Result<Self, VocabularyFault> {
        let is = |kinds: &'static [TokenKind]| move |kind| kinds.contains(&kind);
        Ok(Self {
            user_defined: Finder::new(vocabulary, is(&[TokenKind::UserDefined]), strip_spaces)?,
            all: Finder::new(
                vocabulary,
                is(&[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown]),
                strip_spaces,
            )?,
        })
    }

    /// Calls `part` with each part of `text`, in order.
    pub(super) fn split<'t>(&self, text: &'t str, parse_special: bool, part: impl FnMut(Part<'t>)) {
        let finder = if parse_special { &self.all } else { &self.user_defined };
        finder.split(text, part);
    }
}

struct Finder {
    automaton: AhoCorasick,
    ids: Box<[u32]>,
    /// Of each, whether the spaces behind it go.
    strips: Box<[bool]>,
}

impl Finder {
    fn new(
        vocabulary: &Vocabulary,
        wanted: impl Fn(TokenKind) -> bool,
        strip_spaces: bool,
    ) -> Result<Self, VocabularyFault> {
        let found = vocabulary.kinds().filter(|&(_, kind)| wanted(kind)).map(|(id, _)| id);
        let ids: Box<[u32]> = found.filter(|&id| !vocabulary.text(id).is_empty()).collect();
        let texts = || ids.iter().map(|&id| vocabulary.text(id));
        let found: usize = texts().map(str::len).sum();
        if found > MAX_TEXT_BYTES {
            return Err(VocabularyFault::SpecialTextTooLong { found, limit: MAX_TEXT_BYTES });
        }
        // Chosen by the library, it could be one whose size is a kilobyte for each byte of text.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let automaton =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).kind(kind).build(texts());
        let automaton = automaton.map_err(|e| VocabularyFault::SpecialTokens { reason: e.to_string() })?;
        let strips = texts().map(|text| strip_spaces && !KEEPS_SPACES.contains(&text)).collect();
        Ok(Self { automaton, strips, ids })
    }

    fn split<'t>(&self, text: &'t str, mut part: impl FnMut(Part<'t>)) {
        let mut done = 0;
        for found in self.automaton.find_iter(text) {
            if found.start() > done {
                part(Part::Text(&text[done..found.start()]));
            }
            part(Part::Token(self.ids[found.pattern().as_usize()]));
            done = found.end();
            if self.strips[found.pattern().as_usize()] {
                let behind = text[done..].trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
                done = text.len() - behind.len();
            }
        }
        if done < text.len() {
            part(Part::Text(&text[done..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::vocabulary::TextForm;

    fn vocabulary(tokens: &[(&'static str, TokenKind)]) -> Vocabulary {
        let texts: Vec<&[u8]> = tokens.iter().map(|(text, _)| text.as_bytes()).collect();
        let kinds = tokens.iter().map(|(_, kind)| *kind).collect();
        Vocabulary::new(texts.into_iter(), kinds, TextForm::SentencePiece).expect("a sound vocabulary")
    }

    #[test]
    fn the_longest_is_found_and_control_tokens_only_when_asked_for() {
        use TokenKind::{Control, Normal, UserDefined};
        let vocabulary = vocabulary(&[("a", Normal), ("<x", UserDefined), ("<x>", Control), ("", Control)]);
        let special = SpecialTokens::new(&vocabulary, false).expect("few tokens");
        let parts = |parse_special| {
            let mut parts = vec![];
            special.split("a<x>b<x", parse_special, |part| parts.push(part));
            parts
        };
        assert_eq!(parts(true), [Part::Text("a"), Part::Token(2), Part::Text("b"), Part::Token(1)]);
        assert_eq!(parts(false), [Part::Text("a"), Part::Token(1), Part::Text(">b"), Part::Token(1)]);
    }

    #[test]
    fn spaces_behind_special_tokens_go_in_phi_3() {
        use TokenKind::Control;
        assert!(strips_spaces_behind("Phi-3 Mini 4k Instruct") && !strips_spaces_behind("phi 2"));
        let vocabulary = vocabulary(&[("<|user|>", Control), ("<s>", Control)]);
        let special = SpecialTokens::new(&vocabulary, true).expect("few tokens");
        let mut parts = vec![];
        special.split("<s> <|user|>\n\u{a0}a<|user|> <|user|>", true, |part| parts.push(part));
        let token = Part::Token;
        assert_eq!(parts, [token(1), Part::Text(" "), token(0), Part::Text("\u{a0}a"), token(0), token(0)]);
    }

    #[test]
    fn ends_are_known_by_name_and_become_control_tokens() {
        use TokenKind::{Control, Normal, UserDefined};
        let mut plain = vocabulary(&[("a", Normal), ("<|im_end|>", Normal), ("</s>", UserDefined)]);
        assert_eq!(*ends_of_generation(&mut plain, [0]), [0, 1]);
        assert_eq!([1, 2].map(|id| plain.kind(id)), [Control, Control]);
        let mut control =
            vocabulary(&[("</s>", Control), ("<|file_sep|>", Control), ("<|repo_name|>", Normal)]);
        assert_eq!(*ends_of_generation(&mut control, []), [0, 1]);
        let mut harmony = vocabulary(&[("<|end|>", Control), ("<|return|>", Control), ("<|call|>", Control)]);
        assert_eq!(*ends_of_generation(&mut harmony, []), [1, 2]);
    }
}
