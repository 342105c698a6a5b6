//! Arguments of `batch`.

use clap::{Args, ValueHint};
use std::path::PathBuf;
use zllm_wire::{BatchId, Tenant};

/// `batch`.
#[derive(Debug, Args)]
pub(crate) struct BatchArgs {
    /// The requests, one JSON object a line: custom_id, method, url and body; with --cancel also a batch's id
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The batch's id [default: "b-" and the first 16 hex digits of the file's sha256]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<BatchId>,
    /// Whose jobs they are
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<Tenant>,
    /// Where the answers go [default: FILE with .output.jsonl in place of .jsonl]
    #[arg(long, value_name = "PATH", conflicts_with = "cancel", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Where the lines go that failed [default: FILE with .errors.jsonl in place of .jsonl]
    #[arg(long, value_name = "PATH", conflicts_with = "cancel", value_hint = ValueHint::FilePath)]
    pub(crate) errors: Option<PathBuf>,
    /// Return when all requests are jobs; the same command without it waits for the answers
    #[arg(long, conflicts_with = "cancel")]
    pub(crate) detach: bool,
    /// Cancel the batch's jobs instead
    #[arg(long)]
    pub(crate) cancel: bool,
}
