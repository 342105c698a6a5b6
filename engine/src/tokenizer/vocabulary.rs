//! The tokens of a model: their text in the file, the bytes that they stand for, and their kind. Ids are positions.
//!
//! Invariant: texts and bytes lie end to end in one buffer each, found by `ends`; no allocation a token.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{byte_alphabet, error::VocabularyFault};

/// Tokens that a vocabulary may have. The largest real ones have about 262 thousand.
const MAX_TOKENS: usize = 1 << 24;

/// What a token is for. The numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TokenKind {
    /// A piece of text.
    Normal = 1,
    /// Stands for what has no token.
    Unknown = 2,
    /// Steers the model and is no text, e.g. the end of a turn.
    Control = 3,
    /// A piece of text that is found before all others, whatever the model's own splitting.
    UserDefined = 4,
    /// An id without a meaning.
    Unused = 5,
    /// One byte, for characters without a token.
    Byte = 6,
}

impl TokenKind {
    pub(super) fn from_number(number: i128) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// How a normal token's text is turned into the bytes that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextForm {
    /// A printable character for each byte.
    ByteAlphabet,
    /// UTF-8, with U+2581 for a space.
    SentencePiece,
}

/// Strings end to end.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Buffer {
    fn get(&self, id: usize) -> &[u8] {
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[id] as usize]
    }

    /// Ends the string that was appended to `bytes`.
    fn finish_string(&mut self) -> Result<(), VocabularyFault> {
        let too_long = |_| VocabularyFault::TextTooLong { found: self.bytes.len(), limit: u32::MAX as usize };
        self.ends.push(u32::try_from(self.bytes.len()).map_err(too_long)?);
        Ok(())
    }
}

/// All tokens, found by id or by text.
pub(super) struct Vocabulary {
    texts: Buffer,
    bytes: Buffer,
    kinds: Vec<TokenKind>,
    by_text: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocabulary {
    /// Builds the vocabulary from the tokens' texts and kinds, which are equally many. A text that is there twice is
    /// found as the later token.
    pub(super) fn new<'a>(
        texts: impl ExactSizeIterator<Item = &'a [u8]>,
        kinds: Vec<TokenKind>,
        form: TextForm,
    ) -> Result<Self, VocabularyFault> {
        let count = texts.len();
        if !(1..=MAX_TOKENS).contains(&count) {
            return Err(VocabularyFault::TokenCount { found: count, limit: MAX_TOKENS });
        }
        assert_eq!(count, kinds.len(), "one kind for each token");
        let mut this = Self {
            texts: Buffer::default(),
            bytes: Buffer::default(),
            kinds,
            by_text: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        };
        for (id, text) in texts.enumerate() {
            let text = std::str::from_utf8(text).map_err(|_| VocabularyFault::TokenNotUtf8 { id })?;
            this.texts.bytes.extend_from_slice(text.as_bytes());
            this.texts.finish_string()?;
            append_bytes(&mut this.bytes.bytes, id, text, this.kinds[id], form)?;
            this.bytes.finish_string()?;
            this.index(id as u32);
        }
        Ok(this)
    }

    fn index(&mut self, id: u32) {
        let Self { texts, by_text, hasher, .. } = self;
        let text = texts.get(id as usize);
        let hash = |text: &[u8]| hasher.hash_one(text);
        let same = |&other: &u32| texts.get(other as usize) == text;
        match by_text.find_mut(hash(text), same) {
            Some(earlier) => *earlier = id,
            None => {
                by_text.insert_unique(hash(text), id, |&other| hash(texts.get(other as usize)));
            }
        }
    }

    /// Tokens.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The token with this text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        self.by_text.find(self.hasher.hash_one(text), |&id| self.texts.get(id as usize) == text).copied()
    }

    /// The token with this text, if it is token `id`.
    pub(super) fn find_at(&self, text: &[u8], id: u32) -> Option<u32> {
        // Where texts are there twice, the later token is meant, which may be another one.
        let is_sure = self.by_text.len() == self.len() && (id as usize) < self.len();
        (is_sure && self.texts.get(id as usize) == text).then_some(id)
    }

    /// The text of token `id` in the file. Panics where there is no such token.
    pub(super) fn text(&self, id: u32) -> &str {
        std::str::from_utf8(self.texts.get(id as usize)).expect("checked when the vocabulary was built")
    }

    /// The bytes that token `id` stands for. Panics where there is no such token.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize)
    }

    /// What token `id` is for. Panics where there is no such token.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }

    /// Makes token `id` a control token.
    pub(super) fn set_control(&mut self, id: u32) {
        self.kinds[id as usize] = TokenKind::Control;
    }

    /// All ids with their kinds.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (u32, TokenKind)> {
        (0..).zip(self.kinds.iter().copied())
    }
}

/// Appends the bytes that a token stands for.
fn append_bytes(
    out: &mut Vec<u8>,
    id: usize,
    text: &str,
    kind: TokenKind,
    form: TextForm,
) -> Result<(), VocabularyFault> {
    match (kind, form) {
        (TokenKind::Unused, _) => {}
        (TokenKind::Byte, _) => {
            out.push(byte_of(text).ok_or_else(|| VocabularyFault::ByteToken { id, text: text.to_owned() })?)
        }
        (TokenKind::Normal, TextForm::ByteAlphabet) => byte_alphabet::append_bytes(out, text),
        (TokenKind::Normal, TextForm::SentencePiece) => {
            for (i, part) in text.split('\u{2581}').enumerate() {
                if i > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(part.as_bytes());
            }
        }
        (TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined, _) => {
            out.extend_from_slice(text.as_bytes());
        }
    }
    Ok(())
}

/// The byte that `<0xAB>` names.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}
