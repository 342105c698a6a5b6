//! Tokens to text as they come, never splitting a character.
//!
//! Invariant: what `push` and `finish` gave, joined, is `String::from_utf8_lossy` of the tokens' bytes joined, whatever
//! the pieces. At most three bytes are held back: the beginning of a character whose end has not come.

use crate::tokenizer::Tokenizer;

/// Room for the text of a token, reserved once: few are longer, and those make their buffers grow.
pub(crate) const TOKEN_BYTES: usize = 256;

/// The text of one sequence of tokens, as far as it is whole characters.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The beginning of a character: its first `held` bytes.
    beginning: [u8; 3],
    held: usize,
    /// The beginning and what came after it; kept, so that a token allocates nothing.
    joined: Vec<u8>,
    /// Whether the next text begins with the space that the tokenizer put before it.
    strip_space: bool,
    show_control: bool,
}

impl Detokenizer {
    /// For tokens that go on after other text, as those that a model generates do: every space is shown.
    pub fn new() -> Self {
        Self { joined: Vec::with_capacity(TOKEN_BYTES), ..Self::default() }
    }

    /// For a text from its very beginning: the space that `tokenizer` put before it, if it is one that does, is taken
    /// away again.
    pub fn at_start(tokenizer: &Tokenizer) -> Self {
        Self { strip_space: tokenizer.adds_space_prefix(), ..Self::default() }
    }

    /// Shows the names of all control tokens; else those that [`Tokenizer::is_hidden`] says give no text.
    pub fn show_control(mut self, show: bool) -> Self {
        self.show_control = show;
        self
    }

    /// Appends to `out` the text that is whole now that token `id` has come; often none.
    ///
    /// # Panics
    /// There is no such token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        if tokenizer.is_hidden(id) && !self.show_control {
            return;
        }
        let bytes = tokenizer.token_bytes(id);
        if bytes.is_empty() {
            return;
        }
        let strip = std::mem::take(&mut self.strip_space) && !tokenizer.is_control(id);
        self.push_bytes(if strip { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes }, out);
    }

    /// Appends to `out` what is left: U+FFFD for a character whose end never came.
    pub fn finish(&mut self, out: &mut String) {
        let rest = &self.beginning[..std::mem::take(&mut self.held)];
        out.push_str(&String::from_utf8_lossy(rest));
    }

    /// Bytes that are held back.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        if self.held == 0 {
            return self.append(bytes, out);
        }
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.extend_from_slice(&self.beginning[..self.held]);
        joined.extend_from_slice(bytes);
        self.append(&joined, out);
        self.joined = joined;
    }

    /// Appends `bytes` without a beginning at their end, which is held back.
    fn append(&mut self, bytes: &[u8], out: &mut String) {
        let mut chunks = bytes.utf8_chunks().peekable();
        self.held = 0;
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_beginning(invalid) {
                self.beginning[..invalid.len()].copy_from_slice(invalid);
                self.held = invalid.len();
            } else {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

/// Whether more bytes could make a character of these, which are not UTF-8.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(pieces: &[Vec<u8>]) -> String {
        let mut detokenizer = Detokenizer::new();
        let mut out = String::new();
        for piece in pieces {
            detokenizer.push_bytes(piece, &mut out);
            assert!(detokenizer.held_bytes() <= 3);
        }
        detokenizer.finish(&mut out);
        out
    }

    /// Bytes that often make characters, and often nearly.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            prop::sample::select("a€🙂é\u{10ffff}".as_bytes().to_vec()),
            prop::sample::select(vec![0xc0, 0xe0, 0xed, 0xa0, 0xf0, 0x8f, 0x90, 0xf4, 0xf5, 0x80, 0xbf]),
            any::<u8>(),
        ];
        prop::collection::vec(byte, 0..5)
    }

    proptest! {
        #[test]
        fn streamed_is_whole(pieces in prop::collection::vec(bytes(), 0..12)) {
            let whole = pieces.concat();
            prop_assert_eq!(stream(&pieces), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn no_character_is_split(text in "[a🙂é👨\u{200d}€]{0,12}") {
            let mut detokenizer = Detokenizer::new();
            let mut shown = String::new();
            for byte in text.bytes() {
                let mut out = String::new();
                detokenizer.push_bytes(&[byte], &mut out);
                prop_assert!(!out.contains(char::REPLACEMENT_CHARACTER));
                shown.push_str(&out);
                prop_assert!(text.starts_with(&shown));
            }
            prop_assert_eq!(detokenizer.held_bytes(), 0);
            prop_assert_eq!(shown, text);
        }
    }

    #[test]
    fn a_beginning_without_its_end_is_replaced_at_the_end_only() {
        let mut detokenizer = Detokenizer::new();
        let mut out = String::new();
        detokenizer.push_bytes(b"a\xf0\x9f\x99", &mut out);
        assert_eq!((out.as_str(), detokenizer.held_bytes()), ("a", 3));
        detokenizer.finish(&mut out);
        assert_eq!((out.as_str(), detokenizer.held_bytes()), ("a\u{fffd}", 0));
    }
}
