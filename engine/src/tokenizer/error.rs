//! Why no tokenizer can be made from a GGUF file.

use std::path::Path;

use super::pre_split::Scheme;
use crate::gguf::GgufError;

/// A vocabulary that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or of another type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// What the vocabulary says makes no sense.
    #[error("{}: {fault}", path.display())]
    Vocabulary {
        /// The file, as it was named when it was opened.
        path: Box<Path>,
        /// What is wrong in it.
        fault: VocabularyFault,
    },
}

/// What is wrong with a vocabulary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages beside the fields say what they are")]
pub enum VocabularyFault {
    #[error("`tokenizer.ggml.model` is `{found}`; supported are: gpt2, llama, t5")]
    UnknownModel { found: String },
    #[error(
        "`tokenizer.ggml.pre` is `{found}`, which is not known; if the model's words are split as one of the known ones \
         says, set `tokenizer_pre` for this model to it: {}",
        Scheme::names().join(", ")
    )]
    UnknownPreTokenizer { found: String },
    #[error(
        "`tokenizer.ggml.pre` is `{found}`, which is no byte-level BPE and not supported; supported are: {}",
        Scheme::names().join(", ")
    )]
    OtherPreTokenizer { found: String },
    #[error(
        "`tokenizer_pre` is set, but `tokenizer.ggml.model` is `{model}`, which splits no words; leave it out"
    )]
    NoPreTokenizer { model: String },
    #[error("`tokenizer.ggml.precompiled_charsmap` cannot be used: {reason}")]
    CharsMap { reason: &'static str },
    #[error("`tokenizer.ggml.tokens` has {found} tokens; it should have 1 to {limit}")]
    TokenCount { found: usize, limit: usize },
    #[error("`tokenizer.ggml.tokens` holds {found} bytes of text; at most {limit} are supported")]
    TextTooLong { found: usize, limit: usize },
    #[error("token {id} is not UTF-8")]
    TokenNotUtf8 { id: usize },
    #[error("`{key}` has {found} elements for {expected} tokens")]
    Length { key: &'static str, found: usize, expected: usize },
    #[error("token {id} has the type {found}; types 1 to 6 are known")]
    TokenType { id: usize, found: i128 },
    #[error("token {id} (`{text}`) is marked as a byte, but is not of the form <0x00> to <0xFF>")]
    ByteToken { id: usize, text: String },
    #[error("token {id} has a score that is not a number")]
    Score { id: usize },
    #[error("merge {index} (`{merge}`) names `{part}`, which is no token")]
    Merge { index: usize, merge: String, part: String },
    #[error("merge {index} (`{merge}`) is not two parts with a space between them")]
    MergeForm { index: usize, merge: String },
    #[error("`{key}` is {found}, but there are {tokens} tokens")]
    TokenId { key: &'static str, found: u32, tokens: usize },
    #[error("the special tokens hold {found} bytes of text; at most {limit} are supported")]
    SpecialTextTooLong { found: usize, limit: usize },
    #[error("the special tokens cannot be searched for: {reason}")]
    SpecialTokens { reason: String },
}
