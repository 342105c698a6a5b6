//! Text to tokens and tokens to bytes, as the GGUF file of a model says.
//!
//! Three kinds of model: byte-level BPE (`tokenizer/byte_pairs.rs`), SentencePiece by scores
//! (`tokenizer/sentence_pieces.rs`) and by likelihood (`tokenizer/unigram.rs`). All take O(n log n) in a text's length at
//! worst. Special tokens are found before.
//!
//! Invariants: every id that [`Tokenizer::encode`] gives is less than [`Tokenizer::vocab_size`]; a text's tokens depend
//! on nothing but the text and the file.

mod byte_alphabet;
mod byte_pairs;
mod charsmap;
mod error;
mod merge;
mod pre_split;
mod sentence_pieces;
mod special;
mod unigram;
mod vocabulary;

use crate::gguf::{GgufError, GgufFile, Metadata, Value};
use crate::speech;

pub use self::error::{TokenizerError, VocabularyFault};
use self::{
    byte_pairs::BytePairs,
    charsmap::CharsMap,
    pre_split::Scheme,
    sentence_pieces::SentencePieces,
    special::{Part, SpecialTokens},
    unigram::{Spaces, Unigram},
    vocabulary::{TextForm, TokenKind, Vocabulary},
};

const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const CHARSMAP_KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// The values of `tokenizer.ggml.model` that are supported.
const BYTE_PAIRS: &str = "gpt2";
const SENTENCE_PIECES: &str = "llama";
const UNIGRAM: &str = "t5";

/// Part of every fingerprint: to be raised when the same file begins to give other tokens for the same text.
const FINGERPRINT_VERSION: u32 = 2;

/// A model's tokenizer. Immutable; share it as an `Arc`.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    pre_tokenizer: Option<PreTokenizer>,
    /// Sorted.
    ends: Box<[u32]>,
    fingerprint: [u8; 32],
}

enum Model {
    BytePairs(BytePairs),
    SentencePieces(SentencePieces),
    Unigram(Unigram),
}

/// How the texts of a byte-level vocabulary are split into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// A value of `tokenizer.ggml.pre`.
    pub name: String,
    /// Who says so.
    pub origin: PreTokenizerOrigin,
}

/// Who says which pre-tokenizer a vocabulary has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizerOrigin {
    /// The file.
    File,
    /// Whoever loads it.
    Override,
    /// Nobody: the file is of a time before there was the key. What it was made with is not known, and `default` may
    /// split some words otherwise than the model was trained to see them.
    Assumed,
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
        Self::with_pre_tokenizer(file, None)
    }

    /// As [`Tokenizer::from_gguf`], with `pre` in the place of what the file says in `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// Likewise; also a `pre` for a vocabulary that has no pre-tokenizer.
    pub fn with_pre_tokenizer(file: &GgufFile, pre: Option<&str>) -> Result<Self, TokenizerError> {
        let tokenizer = Self::read(&file.metadata(), pre).map_err(|fault| match fault {
            Fault::Gguf(error) => TokenizerError::Gguf(error),
            Fault::Vocabulary(fault) => TokenizerError::Vocabulary { path: file.path().into(), fault },
        })?;
        if tokenizer.pre_tokenizer.as_ref().is_some_and(|pre| pre.origin == PreTokenizerOrigin::Assumed) {
            tracing::warn!(
                file = %file.path().display(),
                "the file names no pre-tokenizer (`{PRE_KEY}`); `default` is taken, which may not be the model's own: \
                 set `tokenizer_pre`"
            );
        }
        Ok(tokenizer)
    }

    /// The values of `tokenizer.ggml.pre` that are known, sorted.
    pub fn pre_tokenizers() -> Vec<&'static str> {
        Scheme::names()
    }

    fn read(metadata: &Metadata<'_>, pre: Option<&str>) -> Result<Self, Fault> {
        let model = metadata.require_str(MODEL_KEY)?;
        // The form of the tokens, and where the file does not say: BOS, EOS, unknown, and whether texts begin with BOS.
        let (form, bos, eos, unknown, add_bos) = match model {
            BYTE_PAIRS => (TextForm::ByteAlphabet, None, None, None, false),
            SENTENCE_PIECES => (TextForm::SentencePiece, Some(1), Some(2), Some(0), true),
            UNIGRAM => (TextForm::SentencePiece, None, Some(1), Some(2), false),
            other => return Err(VocabularyFault::UnknownModel { found: other.to_owned() }.into()),
        };
        let mut vocabulary = read_vocabulary(metadata, form)?;
        let id = |key, default: Option<u32>| {
            let default = default.filter(|&id| (id as usize) < vocabulary.len());
            token_id(metadata, vocabulary.len(), key, default)
        };
        let bos = id("tokenizer.ggml.bos_token_id", bos)?;
        let eos = id("tokenizer.ggml.eos_token_id", eos)?;
        let unknown = id("tokenizer.ggml.unknown_token_id", unknown)?.unwrap_or(0);
        let eot = id("tokenizer.ggml.eot_token_id", None)?;
        let eom = id("tokenizer.ggml.eom_token_id", None)?;

        let ends = special::ends_of_generation(&mut vocabulary, [eos, eot, eom].into_iter().flatten());
        let pre_tokenizer = read_pre_tokenizer(metadata, model, pre)?;
        let (model, add_bos) = match &pre_tokenizer {
            Some(pre) => {
                let scheme = find_scheme(&pre.name)?;
                (Model::BytePairs(read_byte_pairs(metadata, &vocabulary, scheme)?), scheme.add_bos)
            }
            None if model == UNIGRAM => {
                (Model::Unigram(read_unigram(metadata, &vocabulary, unknown)?), add_bos)
            }
            None => (Model::SentencePieces(read_sentence_pieces(metadata, &vocabulary, unknown)?), add_bos),
        };
        let name = metadata.opt_str("general.name")?.unwrap_or_default();
        Ok(Self {
            special: SpecialTokens::new(&vocabulary, special::strips_spaces_behind(name))?,
            eot: eot.or_else(|| special::end_of_turn(&vocabulary)),
            add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos),
            add_eos: metadata
                .opt_bool("tokenizer.ggml.add_eos_token")?
                .unwrap_or(matches!(model, Model::Unigram(_))),
            fingerprint: fingerprint(metadata, pre),
            pre_tokenizer,
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
                    Model::Unigram(unigram) => unigram.encode(text, out),
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

    /// Whether a text that is read as a whole ends with EOS, as embedding models want it. A prompt goes on and does not.
    pub fn add_eos(&self) -> bool {
        self.add_eos
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

    /// Whether `id` gives no text where control tokens are not shown: one of those, but for the tags of reasoning and
    /// calls, which are part of what a model says; some files mark them as control tokens and others do not.
    ///
    /// # Panics
    /// There is no such token.
    pub fn is_hidden(&self, id: u32) -> bool {
        self.is_control(id) && !speech::is_tag(self.token_text(id))
    }

    /// The token whose text in the file is `text`.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.vocabulary.find(text.as_bytes())
    }

    /// Whether a space is put before every text, which whoever shows the whole text takes away again.
    pub fn adds_space_prefix(&self) -> bool {
        match &self.model {
            Model::BytePairs(_) => false,
            Model::SentencePieces(pieces) => pieces.add_space_prefix(),
            Model::Unigram(unigram) => unigram.add_space_prefix(),
        }
    }

    /// The value of `tokenizer.ggml.model`: `gpt2`, `llama` or `t5`.
    pub fn model(&self) -> &'static str {
        match &self.model {
            Model::BytePairs(_) => BYTE_PAIRS,
            Model::SentencePieces(_) => SENTENCE_PIECES,
            Model::Unigram(_) => UNIGRAM,
        }
    }

    /// How texts are split into words, and who says so; none for the models that do not split.
    pub fn pre_tokenizer(&self) -> Option<&PreTokenizer> {
        self.pre_tokenizer.as_ref()
    }

    /// Names what tokens this tokenizer gives: BLAKE3 of all `tokenizer.ggml.*` entries of the file, of the pre-tokenizer
    /// that was asked for, and of the version of this code. Equal fingerprints give equal tokens.
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

fn find_scheme(name: &str) -> Result<&'static Scheme, VocabularyFault> {
    Scheme::find(name).ok_or_else(|| match Scheme::is_another_algorithm(name) {
        true => VocabularyFault::OtherPreTokenizer { found: name.to_owned() },
        false => VocabularyFault::UnknownPreTokenizer { found: name.to_owned() },
    })
}

fn read_pre_tokenizer(
    metadata: &Metadata<'_>,
    model: &str,
    asked: Option<&str>,
) -> Result<Option<PreTokenizer>, Fault> {
    let (name, origin) = match (asked, metadata.opt_str(PRE_KEY)?) {
        (Some(_), _) if model != BYTE_PAIRS => {
            return Err(VocabularyFault::NoPreTokenizer { model: model.to_owned() }.into());
        }
        _ if model != BYTE_PAIRS => return Ok(None),
        (Some(asked), _) => (asked, PreTokenizerOrigin::Override),
        (None, Some(name)) => (name, PreTokenizerOrigin::File),
        (None, None) => (pre_split::DEFAULT_NAME, PreTokenizerOrigin::Assumed),
    };
    Ok(Some(PreTokenizer { name: name.to_owned(), origin }))
}

fn read_byte_pairs(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary,
    scheme: &'static Scheme,
) -> Result<BytePairs, Fault> {
    let merges = metadata.opt_strings(MERGES_KEY)?;
    let merges = merges.ok_or_else(|| metadata.missing(MERGES_KEY, "an array of strings"))?;
    Ok(BytePairs::new(vocabulary, merges, scheme)?)
}

/// The scores, one for each token.
fn read_scores<'a>(
    metadata: &Metadata<'a>,
    vocabulary: &Vocabulary,
) -> Result<impl ExactSizeIterator<Item = f32> + use<'a>, Fault> {
    let scores = metadata.opt_f32s(SCORES_KEY)?;
    let scores = scores.ok_or_else(|| metadata.missing(SCORES_KEY, "an array of f32"))?;
    same_length(SCORES_KEY, scores.len(), vocabulary.len())?;
    Ok(scores)
}

fn read_unigram(metadata: &Metadata<'_>, vocabulary: &Vocabulary, unknown: u32) -> Result<Unigram, Fault> {
    let scores = read_scores(metadata, vocabulary)?;
    let byte = |value: Value<'_>| match value.as_integer() {
        Some(byte @ -128..=255) => Ok(byte as u8),
        _ => Err(VocabularyFault::CharsMap { reason: "it is not an array of bytes" }),
    };
    let charsmap = match metadata.opt_array(CHARSMAP_KEY)? {
        None => None,
        Some(array) => Some(CharsMap::new(&array.iter().map(byte).collect::<Result<Vec<_>, _>>()?)?),
    };
    let spaces = Spaces {
        add_prefix: metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(false),
        remove_extra: metadata.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    };
    Ok(Unigram::new(vocabulary, scores, unknown, charsmap, spaces)?)
}

fn read_sentence_pieces(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary,
    unknown: u32,
) -> Result<SentencePieces, Fault> {
    let scores = read_scores(metadata, vocabulary)?;
    let add_space_prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    Ok(SentencePieces::new(vocabulary, scores, unknown, add_space_prefix)?)
}

fn same_length(key: &'static str, found: usize, expected: usize) -> Result<(), VocabularyFault> {
    match found == expected {
        true => Ok(()),
        false => Err(VocabularyFault::Length { key, found, expected }),
    }
}

fn fingerprint(metadata: &Metadata<'_>, pre: Option<&str>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"zllm tokenizer");
    hasher.update(&FINGERPRINT_VERSION.to_le_bytes());
    if let Some(pre) = pre {
        hasher.update(&(pre.len() as u64).to_le_bytes());
        hasher.update(pre.as_bytes());
    }
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
