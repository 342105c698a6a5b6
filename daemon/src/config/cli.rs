//! The command line and the environment variables that go with it.

use super::bytes::{Budget, ByteSize};
use clap::Parser;
use std::path::PathBuf;
use zllm_engine::KvFormat;

/// Serves GGUF language models over a Unix socket and over HTTP.
#[derive(Debug, Clone, Parser)]
#[command(
    version,
    about,
    after_help = "Settings are read in this order, each on top of the one before:\n  \
        1. defaults\n  \
        2. one file, the first of: --config, $ZLLM_CONFIG, $XDG_CONFIG_HOME/zllm/zllmd.toml \
        (or ~/.config/zllm/zllmd.toml), /etc/zllm/zllmd.toml\n  \
        3. environment variables (named above)\n  \
        4. flags"
)]
pub(crate) struct Cli {
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "ZLLM_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Read the configuration, say what is wrong with it, and end
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Print what a model file is and what of it would fit, as JSON, and end; no daemon need run
    #[arg(long, value_name = "FILE", conflicts_with = "check_config")]
    pub(crate) inspect: Option<PathBuf>,
    /// Unix socket to listen on
    #[arg(long, value_name = "PATH", env = "ZLLM_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Group whose members may connect beside the daemon's own user
    #[arg(long, value_name = "GROUP", env = "ZLLM_SOCKET_GROUP")]
    pub(crate) socket_group: Option<String>,
    /// Folder of models: NAME.gguf can be used as NAME
    #[arg(long, value_name = "DIR", env = "ZLLM_MODELS_DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// Address of the HTTP server, or "off" [default: 127.0.0.1:7143]
    #[arg(long, value_name = "ADDR:PORT", env = "ZLLM_HTTP")]
    pub(crate) http: Option<String>,
    /// Unix socket of the HTTP server
    #[arg(long, value_name = "PATH", env = "ZLLM_HTTP_SOCKET")]
    pub(crate) http_socket: Option<PathBuf>,
    /// Threads that compute [default: physical cores]
    #[arg(long, value_name = "N", env = "ZLLM_THREADS")]
    pub(crate) threads: Option<usize>,
    /// Kernels that compute: avx512bf16, avx512, avx2 or scalar [default: the best that this machine runs]
    #[arg(long, value_name = "NAME", env = "ZLLM_ISA")]
    pub(crate) isa: Option<String>,
    /// Memory for keys and values of a model that names none, such as 512MiB
    #[arg(long, value_name = "SIZE", env = "ZLLM_KV_BUDGET")]
    pub(crate) kv_budget: Option<ByteSize>,
    /// Memory for keys and values that are kept beside those of running jobs, for a model that names none
    #[arg(long, value_name = "SIZE", env = "ZLLM_RAM_BUDGET")]
    pub(crate) ram_budget: Option<ByteSize>,
    /// How a model that does not say keeps keys and values: i16, f16 or q8g64, or KEYS/VALUES [default: i16]
    #[arg(long, value_name = "FORMAT", env = "ZLLM_KV_FORMAT")]
    pub(crate) kv_format: Option<KvFormat>,
    /// Folder of what is kept over a restart [default: $STATE_DIRECTORY, $XDG_STATE_HOME/zllm or ~/.local/state/zllm]
    #[arg(long, value_name = "DIR", env = "ZLLM_KV_DIR")]
    pub(crate) kv_dir: Option<PathBuf>,
    /// Space for keys and values in that folder, such as 8GiB, or "off"
    #[arg(long, value_name = "SIZE", env = "ZLLM_SSD_BUDGET")]
    pub(crate) ssd_budget: Option<Budget>,
    /// Jobs that are computed side by side
    #[arg(long, value_name = "N", env = "ZLLM_RUNNING_JOBS")]
    pub(crate) running_jobs: Option<usize>,
    /// Prompt tokens computed between two decode steps
    #[arg(long, value_name = "N", env = "ZLLM_PREFILL_CHUNK_TOKENS")]
    pub(crate) prefill_chunk_tokens: Option<usize>,
    /// Seconds that running jobs may go on after SIGTERM
    #[arg(long, value_name = "N", env = "ZLLM_DRAIN_SECONDS")]
    pub(crate) drain_seconds: Option<u64>,
    /// What is logged to stderr: a level, or directives such as info,zllmd=debug
    #[arg(long, value_name = "FILTER", env = "ZLLM_LOG")]
    pub(crate) log: Option<String>,
}
