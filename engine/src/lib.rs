//! What is computed: models read from GGUF files, text in and out, and the runtime that turns tokens into logits.
//! No async, no clock, no socket, no device handle, no `unsafe`.
//!
//! Entry points: [`Engine`] answers prompts on the caller's thread; [`LoadedModel`] is what a daemon steps for many
//! sequences at once, or [`DeviceModel`] where several models share threads; [`Oracle`] says what is right.
#![forbid(unsafe_code)]

pub mod detokenizer;
mod engine;
mod fingerprint;
mod generation;
pub mod gguf;
pub mod inspect;
mod loaded;
pub mod message;
mod oracle;
mod pooling;
mod prefill;
mod request;
mod runtime;
pub mod sampling;
pub mod spec;
pub mod speech;
mod stage;
pub mod stop;
pub mod template;
mod text_model;
pub mod tokenizer;

pub use engine::{CancelHandle, Engine, GenerateError, KvFigures, Summary};
pub use fingerprint::{FingerprintPart, StagesError};
pub use generation::{Accepted, Alternative, Generation, NoLogits, ResumeError, Resumed, TokenReport};
pub use loaded::{DeviceModel, LoadError, LoadOptions, LoadedModel, cpu_backend};
pub use message::Message;
pub use oracle::{Oracle, Watched};
pub use pooling::{Pool, PoolError, Pooling};
pub use prefill::PrefillError;
pub use request::{
    Chat, FinishReason, GenerationParams, MAX_LOG_PROBABILITIES, MAX_STOP_TOKENS, Prompt, RequestError,
    StopCause,
};
pub use runtime::{
    BlockError, LoadProgress, Logits, Runtime, RuntimeError, RuntimeLimits, StageOutput, StepError, StepRow,
    Want,
};
pub use speech::{CallStyle, Piece, SpeechReader, SpeechStyle};
pub use stage::Stage;
pub use template::TemplateChoice;
pub use text_model::TextModel;
pub use zllm_kernels::{
    backend::{KV_BLOCK_TOKENS, KvCodec, KvFormat, UnknownKvFormat},
    cpu::{CpuBackend, isa::Isa},
};
