//! Arguments of `top`.

use crate::units;
use clap::Args;

/// `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// How often to look, such as 2s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = units::parse_duration_ms)]
    pub(crate) interval: u64,
    /// Print it once and return; so it is without a terminal
    #[arg(long)]
    pub(crate) once: bool,
}
