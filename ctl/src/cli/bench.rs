//! Arguments of `bench`.

use crate::limits::{MAX_BENCH_SESSIONS, MAX_BENCH_TOKENS};
use clap::{Args, value_parser};

/// `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The model [default: the one that is loaded, or the only one]
    pub(crate) model: Option<String>,
    /// Tokens of the prompts
    #[arg(long, value_name = "TOKENS", default_value = "128,512,2048", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(1..=MAX_BENCH_TOKENS.into()))]
    pub(crate) prefill: Vec<u32>,
    /// Tokens before the decodes
    #[arg(long, value_name = "TOKENS", default_value = "0,2048", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(0..=MAX_BENCH_TOKENS.into()))]
    pub(crate) depth: Vec<u32>,
    /// Tokens that each session decodes
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    #[arg(value_parser = value_parser!(u32).range(2..=MAX_BENCH_TOKENS.into()))]
    pub(crate) decode: u32,
    /// Sessions that decode at once
    #[arg(long, value_name = "COUNT", default_value = "1,2,4,8,16", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(1..=MAX_BENCH_SESSIONS.into()))]
    pub(crate) sessions: Vec<u32>,
    /// How often each test runs; the best counts
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) repeat: u32,
}
