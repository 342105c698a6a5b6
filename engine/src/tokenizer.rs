//! Text to tokens and tokens to bytes, as the GGUF file of a model says.
//!
//! Two kinds of model: byte-level BPE (`tokenizer/byte_pairs.rs`) and SentencePiece by scores
//! (`tokenizer/sentence_pieces.rs`). Both take O(n log n) in a text's length at worst. Special tokens are found before.
//!
//! Invariants: every id that [`Tokenizer::encode`] gives is less than [`Tokenizer::vocab_size`]; a text's tokens depend
//! on nothing but the text and the file.

mod byte_alphabet;
mod byte_pairs;
mod error;
mod merge;
mod pre_split;
mod sentence_pieces;
mod special;
mod unicode;
mod vocabulary;

use crate::gguf::{GgufError, GgufFile, Metadata, Value};

pub use self::error::{TokenizerError, VocabularyFault};
use self::{
    byte_pairs::BytePairs,
    pre_split::Scheme,
    sentence_pieces::SentencePieces,
    special::{Part, SpecialTokens},
    vocabulary::{TextForm, TokenKind, Vocabulary},
};

const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const MERGES_KEY: &str = "tokenizer.ggml.merges";

/// The values of `tokenizer.ggml.model` that are supported.
const BYTE_PAIRS: &str = "gpt2";
const SENTENCE_PIECES: &str = "llama";

/// Part of every fingerprint: to be raised when the same file begins to give other tokens for the same text.
const FINGERPRINT_VERSION: u32 = 1;

/// A model's tokenizer. Immutable; share it as an `Arc`.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    add_bos: bool,
    /// Sorted.
    ends: Box<[u32]>,
    fingerprint: [u8; 32],
}

enum Model {
    BytePairs(BytePairs),
    SentencePieces(SentencePieces),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer that `file` describes. Copies what it needs; the file may be closed afterwards.
    ///
    /// # Errors
    /// The vocabulary is of a kind that is not supported (the message lists those that are), incomplete or
    /// contradictory; the message names the file and the key or token.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        Self::read(&file.metadata()).map_err(|fault| match fault {
            Fault::Gguf(error) => TokenizerError::Gguf(error),
            Fault::Vocabulary(fault) => TokenizerError::Vocabulary { path: file.path().into(), fault },
        })
    }

    fn read(metadata: &Metadata<'_>) -> Result<Self, Fault> {
        let form = match metadata.require_str(MODEL_KEY)? {
            BYTE_PAIRS => TextForm::ByteAlphabet,
            SENTENCE_PIECES => TextForm::SentencePiece,
            other => return Err(VocabularyFault::UnknownModel { found: other.to_owned() }.into()),
        };
        let mut vocabulary = read_vocabulary(metadata, form)?;
        let id = |key, default| token_id(metadata, vocabulary.len(), key, default);
        // What SentencePiece files that do not say mean.
        let usual =
            |id: u32| (form == TextForm::SentencePiece && (id as usize) < vocabulary.len()).then_some(id);
        let bos = id("tokenizer.ggml.bos_token_id", usual(1))?;
        let eos = id("tokenizer.ggml.eos_token_id", usual(2))?;
        let unknown = id("tokenizer.ggml.unknown_token_id", None)?.unwrap_or(0);
        let eot = id("tokenizer.ggml.eot_token_id", None)?;
        let eom = id("tokenizer.ggml.eom_token_id", None)?;

        let ends = special::ends_of_generation(&mut vocabulary, [eos, eot, eom].into_iter().flatten());
        let (model, add_bos) = match form {
            TextForm::ByteAlphabet => {
                let pairs = read_byte_pairs(metadata, &vocabulary)?;
                let add_bos = pairs.scheme.add_bos;
                (Model::BytePairs(pairs), add_bos)
            }
            TextForm::SentencePiece => {
                (Model::SentencePieces(read_sentence_pieces(metadata, &vocabulary, unknown)?), true)
            }
        };
        Ok(Self {
            special: SpecialTokens::new(&vocabulary)?,
            eot: eot.or_else(|| special::end_of_turn(&vocabulary)),
            add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos),
            fingerprint: fingerprint(metadata),
            vocabulary,
            model,
            bos,
            eos,
            ends,
        })
    }

    /// Appends the tokens of `text` to `out`, without BOS or EOS. User-defined tokens are always found in the text as
    /// they stand; control tokens only with `parse_special`, which is for text that is trusted to steer the model.
    ///
    /// # Panics
    /// A text of 4 GiB or more.
    pub fn encode(&self, text: &str, parse_special: bool, out: &mut Vec<u32>) {
        // Nothing, or a special token, is before the next part.
        let mut at_start = true;
        self.special.split(text, parse_special, |part| match part {
            Part::Token(id) => {
                out.push(id);
                at_start = true;
            }
            Part::Text(text) => {
                match &self.model {
                    Model::BytePairs(pairs) => pairs.encode(&self.vocabulary, text, out),
                    Model::SentencePieces(pieces) => pieces.encode(&self.vocabulary, text, at_start, out),
                }
                at_start = false;
            }
        });
    }

    /// As [`Tokenizer::encode`], after BOS where the model's texts begin with it.
    ///
    /// # Panics
    /// A text of 4 GiB or more.
    pub fn encode_with_bos(&self, text: &str, parse_special: bool, out: &mut Vec<u32>) {
        out.extend(self.bos.filter(|_| self.add_bos));
        self.encode(text, parse_special, out);
    }

    /// Whether the model's texts begin with BOS.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// Whether a generation is over when `id` was drawn.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The ids that end a generation, sorted.
    pub fn ends_of_generation(&self) -> &[u32] {
        &self.ends
    }

    /// How many tokens there are. Ids are less.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The bytes that `id` stands for, which may be a part of a character; of a control token its name, of an unused
    /// one nothing.
    ///
    /// # Panics
    /// There is no such token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The text of `id` in the file: in the byte alphabet, or with U+2581 for spaces.
    ///
    /// # Panics
    /// There is no such token.
    pub fn token_text(&self, id: u32) -> &str {
        self.vocabulary.text(id)
    }

    /// Whether `id` is no text: a control token, or the one for what is unknown.
    ///
    /// # Panics
    /// There is no such token.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), TokenKind::Control | TokenKind::Unknown)
    }

    /// The token whose text in the file is `text`.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.vocabulary.find(text.as_bytes())
    }

    /// Whether a space is put before every text, which whoever shows the whole text takes away again.
    pub fn adds_space_prefix(&self) -> bool {
        matches!(&self.model, Model::SentencePieces(pieces) if pieces.add_space_prefix())
    }

    /// Names what tokens this tokenizer gives: BLAKE3 of all `tokenizer.ggml.*` entries of the file and of the version
    /// of this code. Equal fingerprints give equal tokens.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

/// Why a vocabulary was refused, before the file is named.
enum Fault {
    Gguf(GgufError),
    Vocabulary(VocabularyFault),
}

impl From<GgufError> for Fault {
    fn from(error: GgufError) -> Self {
        Self::Gguf(error)
    }
}

impl From<VocabularyFault> for Fault {
    fn from(fault: VocabularyFault) -> Self {
        Self::Vocabulary(fault)
    }
}

fn read_vocabulary(metadata: &Metadata<'_>, form: TextForm) -> Result<Vocabulary, Fault> {
    let tokens = metadata.opt_strings(TOKENS_KEY)?;
    let tokens = tokens.ok_or_else(|| metadata.missing(TOKENS_KEY, "an array of strings"))?;
    let kinds = match metadata.opt_array(TYPES_KEY)? {
        None => vec![TokenKind::Normal; tokens.len()],
        Some(array) => {
            same_length(TYPES_KEY, array.len(), tokens.len())?;
            let kind = |(id, value): (usize, Value<'_>)| {
                let found = value.as_integer().unwrap_or(-1);
                TokenKind::from_number(found).ok_or(VocabularyFault::TokenType { id, found })
            };
            array.iter().enumerate().map(kind).collect::<Result<_, _>>()?
        }
    };
    Ok(Vocabulary::new(tokens, kinds, form)?)
}

fn token_id(
    metadata: &Metadata<'_>,
    tokens: usize,
    key: &'static str,
    default: Option<u32>,
) -> Result<Option<u32>, Fault> {
    match metadata.opt_u32(key)? {
        None => Ok(default),
        Some(id) if (id as usize) < tokens => Ok(Some(id)),
        Some(found) => Err(VocabularyFault::TokenId { key, found, tokens }.into()),
    }
}

fn read_byte_pairs(metadata: &Metadata<'_>, vocabulary: &Vocabulary) -> Result<BytePairs, Fault> {
    let name = metadata.opt_str(PRE_KEY)?.unwrap_or(pre_split::DEFAULT_NAME);
    let unknown = || VocabularyFault::UnknownPreTokenizer { found: name.to_owned() };
    let scheme = Scheme::find(name).ok_or_else(unknown)?;
    let merges = metadata.opt_strings(MERGES_KEY)?;
    let merges = merges.ok_or_else(|| metadata.missing(MERGES_KEY, "an array of strings"))?;
    Ok(BytePairs::new(vocabulary, merges, scheme)?)
}

fn read_sentence_pieces(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary,
    unknown: u32,
) -> Result<SentencePieces, Fault> {
    let scores = metadata.opt_f32s(SCORES_KEY)?;
    let scores = scores.ok_or_else(|| metadata.missing(SCORES_KEY, "an array of f32"))?;
    same_length(SCORES_KEY, scores.len(), vocabulary.len())?;
    let add_space_prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    Ok(SentencePieces::new(vocabulary, scores, unknown, add_space_prefix)?)
}

fn same_length(key: &'static str, found: usize, expected: usize) -> Result<(), VocabularyFault> {
    match found == expected {
        true => Ok(()),
        false => Err(VocabularyFault::Length { key, found, expected }),
    }
}

fn fingerprint(metadata: &Metadata<'_>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"zllm tokenizer");
    hasher.update(&FINGERPRINT_VERSION.to_le_bytes());
    for (key, value_type, bytes) in metadata.iter_raw().filter(|(key, ..)| key.starts_with("tokenizer.ggml."))
    {
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(key.as_bytes());
        hasher.update(&(value_type as u32).to_le_bytes());
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    *hasher.finalize().as_bytes()
}
