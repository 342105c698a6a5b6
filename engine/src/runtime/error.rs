//! Why a model does not come to a device, and why a step is refused.

use zllm_kernels::backend::DeviceError;

use crate::spec::SpecError;

/// Why a step was refused. Each is a fault of the caller or of the device, never of a request that was checked.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A batch of no runs, or a run of no tokens.
    #[error("an empty step")]
    Empty,
    /// More rows than the runtime was made for.
    #[error("{found} {what} in one step; the runtime was made for {limit}")]
    TooMany {
        /// Rows or logit rows.
        what: &'static str,
        /// Asked.
        found: usize,
        /// Possible.
        limit: usize,
    },
    /// A token that is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    BadToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The first stage begins with tokens and each other one with the rows of the stage before it.
    #[error("the stage of layers {first_layer} and up got {found} hidden values; it begins with {expected}")]
    WrongHidden {
        /// The stage's first layer.
        first_layer: usize,
        /// Values given; 0 for none.
        found: usize,
        /// Values of all rows; 0 for the first stage.
        expected: usize,
    },
    /// Logits are the last stage's to give.
    #[error("the stage ends with layer {end_layer} of {layers}; only the last one gives logits")]
    NoLogits {
        /// One past the stage's last layer.
        end_layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A run past the model's context.
    #[error("position {end} is past the context of {context}")]
    PastContext {
        /// One past the last position asked.
        end: usize,
        /// The model's own limit.
        context: usize,
    },
    /// A block table that is too short or names a block that does not exist.
    #[error("the block table of {tokens} tokens has {found} blocks, arena size {arena}")]
    BadBlocks {
        /// Tokens of the sequence after the step.
        tokens: usize,
        /// Length of the table.
        found: usize,
        /// Blocks of the arena.
        arena: usize,
    },
}

/// Why a KV block was not copied.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BlockError {
    /// A block outside the arena.
    #[error("KV block {id} does not exist; the arena has {arena} blocks")]
    NoSuchBlock {
        /// The block asked for.
        id: u32,
        /// Blocks of the arena.
        arena: usize,
    },
    /// Bytes that are no block of this model.
    #[error("{found} bytes are no KV block; one of this model has {expected} bytes")]
    WrongSize {
        /// Bytes given.
        found: usize,
        /// Bytes of a block.
        expected: usize,
    },
}

/// Why a model could not be brought to a device.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The file is not a model that can be run.
    #[error(transparent)]
    Spec(Box<SpecError>),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<SpecError> for RuntimeError {
    fn from(error: SpecError) -> Self {
        Self::Spec(Box::new(error))
    }
}
