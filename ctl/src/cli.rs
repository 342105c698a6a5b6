//! The command line's definition: parsing, help, completions and the man page all come from here.

mod batch;
mod bench;
mod jobs;
mod keys;
mod sessions;
mod top;

pub(crate) use batch::BatchArgs;
pub(crate) use bench::BenchArgs;
pub(crate) use jobs::{AttachArgs, CancelArgs, ClassArg, RunArgs, SubmitArgs, TimesArgs};
pub(crate) use keys::{AddKeyArgs, KeysCommand};
pub(crate) use sessions::{
    EvictArgs, ForkArgs, Listed, SaveArgs, SessionArgs, TenantArgs, TimeToLive, session_ref, with_tenant,
};
pub(crate) use top::TopArgs;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use sessions::time_to_live;
use std::path::PathBuf;
use zllm_wire::paths::SOCKET_ENV;
use zllm_wire::{
    BUILTIN_TEMPLATES, GenerationParams, JobId, LogitBias, SamplingParams, SessionId, Tenant, limits,
};

const AFTER_HELP: &str = "\
Results go to stdout, everything else to stderr.

Exit codes: 0 done, 1 refused or not found, 2 failed, 64 usage, 130 interrupted.";

/// Above the options that every command takes, so that they stand behind its own.
const EVERYWHERE: &str = "Options of every command";
/// What makes tokens less likely that were there before.
const PENALTIES: &str = "Penalties";
/// How long it gets, what ends it, how many there are and what is told of it.
const THE_ANSWER: &str = "The answer";

/// Talk to zllmd, the daemon that serves language models.
#[derive(Debug, Parser)]
#[command(name = "zllmctl", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// The daemon's socket [default: $XDG_RUNTIME_DIR/zllm/zllmd.sock, else /run/zllm/zllmd.sock, else
    /// /tmp/zllm-UID/zllmd.sock]
    #[arg(long, global = true, env = SOCKET_ENV, hide_env_values = true, value_name = "PATH")]
    #[arg(value_hint = ValueHint::FilePath, help_heading = EVERYWHERE)]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON: one object, or one object a line where results come one by one
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch a model file: from the catalogue, a Hugging Face repository, or this machine
    Pull(PullArgs),
    /// List the models that the daemon knows
    Models,
    /// Show what a model is and what of it would fit on the daemon's machine, without loading it
    Inspect {
        /// A model's name, or a file: a path with a "/" or that ends in .gguf
        #[arg(value_hint = ValueHint::FilePath)]
        model: String,
    },
    /// Load a model
    Load {
        /// The model's name
        model: String,
    },
    /// Unload a model when its jobs have ended
    Unload {
        /// The model's name
        model: String,
    },
    /// Ask a model and stream its answer; without a prompt, chat
    Run(RunArgs),
    /// Submit a job that goes on without this command, and print its id
    Submit(SubmitArgs),
    /// Run a file of requests in OpenAI's batch format, as jobs of the class batch
    Batch(BatchArgs),
    /// List sessions and jobs
    List {
        /// Only these
        what: Option<Listed>,
        /// Only those of this tenant
        #[arg(long, value_name = "NAME")]
        tenant: Option<Tenant>,
    },
    /// Show a job or a session in full
    Show {
        /// A job's id (it begins with "j-") or a session's
        id: String,
        /// Whose session it is
        #[arg(long, value_name = "NAME")]
        tenant: Option<Tenant>,
    },
    /// Say why a job found what it found in the KV cache
    Why {
        /// The job's id
        job: JobId,
    },
    /// Stream a job's answer from its start, or from an offset on
    Attach(AttachArgs),
    /// Show who waits and why, who runs, and how full the queue is
    Queue {
        /// All jobs that wait, not only the first ones
        #[arg(long)]
        all: bool,
    },
    /// Cancel a job, or all jobs of a session or a batch
    Cancel(CancelArgs),
    /// Let a job wait until `resume`; one that runs is parked
    Hold {
        /// The job's id
        job: JobId,
    },
    /// Let nothing that waits start until `resume`; what runs goes on
    Drain,
    /// End a drain, or let a job that is held have its turn
    Resume {
        /// The id of a job that is held
        job: Option<JobId>,
    },
    /// Make a job more or less urgent
    Priority {
        /// The job's id
        job: JobId,
        /// Its new class
        class: ClassArg,
    },
    /// Draw where the kept KV lies: device, RAM and SSD, block by block
    Residency,
    /// Drop kept KV: of a session, of old ones, or all of it
    Evict(EvictArgs),
    /// Keep a session's KV until it is unpinned
    Pin(SessionArgs),
    /// Let a session's KV go when the room is needed
    Unpin(SessionArgs),
    /// Say how long after its last use a session is forgotten, unless it is pinned
    Ttl {
        #[command(flatten)]
        session: SessionArgs,
        /// Such as 30s, 15m, 12h or 7d; "off": as the daemon's configuration says
        #[arg(value_parser = time_to_live)]
        ttl: TimeToLive,
    },
    /// Write sessions to the SSD now, and return when they are there
    Save(SaveArgs),
    /// Begin a new session with another's timeline, or with a part of it
    Fork(ForkArgs),
    /// Read all that is on the SSD and compare it with its checksums and references; mends nothing
    Check,
    /// Make, list and revoke the API keys that HTTP asks for
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Show the daemon at a glance
    Status,
    /// Watch the daemon live: devices, speed, queue, jobs
    Top(TopArgs),
    /// Measure how fast a model is served: prompts, decodes, several sessions at once
    Bench(BenchArgs),
    /// Stop the daemon when its jobs have ended
    Stop {
        /// Do not wait for running jobs
        #[arg(long)]
        now: bool,
        /// Return when the daemon has begun to stop, not when it has stopped
        #[arg(long)]
        no_wait: bool,
    },
    /// Print the token ids of texts
    Tokenize(TokenizeArgs),
    /// Print a completion script
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page
    Man {
        /// Write a page for each command into this folder instead
        #[arg(long, value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// Shells that completions can be had for.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// `pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The name to give the model; one of the catalogue unless --file or --repo says where it is
    #[arg(required_unless_present = "catalogue")]
    pub(crate) name: Option<String>,
    /// List the catalogue
    #[arg(long, conflicts_with = "name")]
    pub(crate) catalogue: bool,
    /// Take this file of this machine (linked if possible, else copied)
    #[arg(long, value_name = "PATH", conflicts_with = "repo", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Take a file of this Hugging Face repository ($HF_ENDPOINT and $HF_TOKEN are respected)
    #[arg(long, value_name = "OWNER/NAME", requires = "filename")]
    pub(crate) repo: Option<String>,
    /// The file in the repository
    #[arg(long, value_name = "FILE", requires = "repo")]
    pub(crate) filename: Option<String>,
    /// The repository's branch, tag or commit
    #[arg(long, default_value = "main", requires = "repo")]
    pub(crate) revision: String,
    /// The sha256 that the file must have
    #[arg(long, value_name = "HEX", value_parser = parse_sha256)]
    pub(crate) sha256: Option<String>,
    /// Where models lie [default: $ZLLM_MODELS_DIR, else $XDG_DATA_HOME/zllm/models]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) models_dir: Option<PathBuf>,
    /// Replace a model of that name
    #[arg(long)]
    pub(crate) force: bool,
}

/// Where a prompt comes from and how it is answered.
#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// The model's name
    pub(crate) model: String,
    /// The prompt; "-" reads it from stdin
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file; "-" is stdin
    #[arg(long, value_name = "PATH", conflicts_with = "prompt", value_hint = ValueHint::FilePath)]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Give the prompt to the model as it is, without its chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// The system message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "raw", help = template_help())]
    pub(crate) template: Option<String>,
    /// Keep the KV under this session's name
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<SessionId>,
    /// Go on from where this session is: the prompt follows its tokens as it is; --session names another to keep it under
    #[arg(long = "continue", value_name = "ID", conflicts_with_all = ["raw", "system", "template"])]
    pub(crate) continued: Option<SessionId>,
    #[command(flatten)]
    pub(crate) tenant: TenantArgs,
    #[command(flatten, next_help_heading = "Sampling")]
    pub(crate) sampling: SamplingArgs,
}

/// How the next token is chosen and when to stop. What is not given is left to the daemon; the help repeats its defaults.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// 0 takes the likeliest token each time [default: 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Move the temperature up to X down where the model is sure, and up where it is not [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    dynatemp_range: Option<f32>,
    /// How that follows the entropy: its power [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    dynatemp_exponent: Option<f32>,
    /// Choose among the K likeliest tokens; 0: among all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Choose among the likeliest tokens whose probabilities sum to P [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the likeliest [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Choose among the tokens of the most usual surprise whose probabilities sum to P; 1: among all [default: 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    typical_p: Option<f32>,
    /// How often to leave out all likely tokens but the least likely of them [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    xtc_probability: Option<f32>,
    /// How likely a token must be for that, 0 to 0.5 [default: 0.1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    xtc_threshold: Option<f32>,
    /// 2 keeps the answer's surprise near --mirostat-tau, in place of the filters above [default: 0]
    #[arg(long, value_name = "VERSION")]
    mirostat: Option<u32>,
    /// The surprise to keep near, in bits [default: 5]
    #[arg(long, value_name = "BITS", allow_negative_numbers = true)]
    mirostat_tau: Option<f32>,
    /// How fast that is followed, 0 to 1 [default: 0.1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    mirostat_eta: Option<f32>,
    /// Divide the logits of tokens that were just there by X; 1 does nothing [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = PENALTIES)]
    repeat_penalty: Option<f32>,
    /// Subtract X from a token's logit for every time it was just there [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = PENALTIES)]
    frequency_penalty: Option<f32>,
    /// Subtract X once from the logit of a token that was just there [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = PENALTIES)]
    presence_penalty: Option<f32>,
    /// How many of the latest tokens these three penalties look at [default: 64]
    #[arg(long, value_name = "N", help_heading = PENALTIES)]
    repeat_last_n: Option<u32>,
    /// Subtract X from the logit of a token that would prolong a repetition, more for longer ones [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = PENALTIES)]
    dry_multiplier: Option<f32>,
    /// How many times more for each token that the repetition is longer [default: 1.75]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = PENALTIES)]
    dry_base: Option<f32>,
    /// The shortest repetition, in tokens, whose prolonging costs [default: 2]
    #[arg(long, value_name = "N", help_heading = PENALTIES)]
    dry_allowed_length: Option<u32>,
    /// How many of the latest tokens are searched for repetitions [default: 64]
    #[arg(long, value_name = "N", help_heading = PENALTIES)]
    dry_penalty_last_n: Option<u32>,
    /// A text that no repetition goes across; may be repeated, "none" for none [default: newline, ":", '"' and "*"]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = PENALTIES)]
    dry_sequence_breaker: Vec<String>,
    /// Add BIAS to the logit of token ID; may be repeated
    #[arg(long, value_name = "ID:BIAS", value_parser = logit_bias, allow_hyphen_values = true)]
    logit_bias: Vec<LogitBias>,
    /// The same seed gives the same answer, another one another [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Most tokens to generate [default: 1024, if the daemon's configuration says nothing else]
    #[arg(long, value_name = "N", help_heading = THE_ANSWER)]
    max_tokens: Option<u32>,
    /// Fewest tokens to generate before an end token, a stop token or a stop text may end the answer [default: 0]
    #[arg(long, value_name = "N", help_heading = THE_ANSWER)]
    min_tokens: Option<u32>,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", help_heading = THE_ANSWER, allow_hyphen_values = true)]
    stop: Vec<String>,
    /// End the answer before this token; may be repeated
    #[arg(long, value_name = "ID", help_heading = THE_ANSWER)]
    stop_token: Vec<u32>,
    /// Go on over the tokens that end an answer
    #[arg(long, help_heading = THE_ANSWER)]
    ignore_eos: bool,
    /// Draw this many answers [default: 1]
    #[arg(short, long, value_name = "N", help_heading = THE_ANSWER)]
    pub(crate) n: Option<u32>,
    /// Report each token's log probability and the N likeliest tokens at its place, 0 to 20; shown with --json
    #[arg(long, value_name = "N", help_heading = THE_ANSWER)]
    pub(crate) logprobs: Option<u32>,
}

fn template_help() -> String {
    format!(
        "The chat template to use instead of the model's: a Jinja file (a path with a \"/\" or a \".\" in it), one of \
         the model's own by name, or one of {}",
        BUILTIN_TEMPLATES.join(", ")
    )
}

fn logit_bias(text: &str) -> Result<LogitBias, String> {
    let parsed = text.split_once(':').and_then(|(token, bias)| {
        Some(LogitBias { token: token.trim().parse().ok()?, bias: bias.trim().parse().ok()? })
    });
    parsed.ok_or_else(|| format!("{text:?} is not ID:BIAS, such as 42:-1.5"))
}

impl SamplingArgs {
    /// The same as the socket protocol says it.
    pub(crate) fn params(&self) -> Result<GenerationParams, String> {
        for (flag, found, most) in [
            ("--stop", self.stop.len(), limits::MAX_STOP_STRINGS),
            ("--stop-token", self.stop_token.len(), limits::MAX_STOP_TOKENS),
            ("--dry-sequence-breaker", self.dry_sequence_breaker.len(), limits::MAX_DRY_BREAKERS),
            ("--logit-bias", self.logit_bias.len(), limits::MAX_LOGIT_BIASES),
        ] {
            if found > most {
                return Err(format!("{flag} was given {found} times; at most {most}"));
            }
        }
        let breakers = match self.dry_sequence_breaker.as_slice() {
            [] => None,
            [only] if only == "none" => Some(Vec::new()),
            given => Some(given.to_vec()),
        };
        Ok(GenerationParams {
            sampling: SamplingParams {
                temperature: self.temperature,
                dynatemp_range: self.dynatemp_range,
                dynatemp_exponent: self.dynatemp_exponent,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                typical_p: self.typical_p,
                xtc_probability: self.xtc_probability,
                xtc_threshold: self.xtc_threshold,
                mirostat: self.mirostat,
                mirostat_tau: self.mirostat_tau,
                mirostat_eta: self.mirostat_eta,
                repeat_penalty: self.repeat_penalty,
                frequency_penalty: self.frequency_penalty,
                presence_penalty: self.presence_penalty,
                repeat_last_n: self.repeat_last_n,
                dry_multiplier: self.dry_multiplier,
                dry_base: self.dry_base,
                dry_allowed_length: self.dry_allowed_length,
                dry_penalty_last_n: self.dry_penalty_last_n,
                dry_sequence_breakers: breakers,
                logit_bias: self.logit_bias.clone(),
                seed: self.seed,
            },
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop: self.stop.clone(),
            stop_tokens: self.stop_token.clone(),
            ignore_eos: self.ignore_eos,
            n: self.n,
            logprobs: self.logprobs,
        })
    }
}

/// `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// The model whose tokenizer to use
    #[arg(long)]
    pub(crate) model: String,
    /// The text
    #[arg(required_unless_present = "text_file", conflicts_with = "text_file")]
    pub(crate) text: Option<String>,
    /// Read texts from a file, with a NUL between two; "-" is stdin
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) text_file: Option<PathBuf>,
    /// Parse special tokens in the text, and begin with the begin-of-sequence token if the model wants one
    #[arg(long)]
    pub(crate) special: bool,
}

fn parse_sha256(hex: &str) -> Result<String, String> {
    if hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(hex.to_ascii_lowercase())
    } else {
        Err("a sha256 is 64 hexadecimal digits".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_negative_number_is_a_value_for_the_daemon_to_judge() {
        let cli = Cli::try_parse_from(["zllmctl", "run", "m", "hi", "--temperature", "-1"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("run is run") };
        assert_eq!(args.prompt.sampling.temperature, Some(-1.0));
    }
}
