//! `cargo xtask COMMAND`: the commands of this repository, one file each.
//!
//! Depends on nothing of ours, so that it also runs while our crates do not compile; what it needs of them it runs as
//! programs. Every harness here has a test that proves it fails on bad input.
#![forbid(unsafe_code)]

mod batch_check;
mod bench;
mod canaries;
mod ci;
mod clients;
mod clock;
mod figures;
mod http_bench;
mod inlining;
mod kv_bench;
mod models;
mod options;
mod perplexity;
mod process;
mod quickstart;
mod report;
mod running_daemon;
mod serve_bench;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

  quickstart         build zllm, fetch a small model, start the daemon, stream one answer, stop the daemon
  test [ARGS]        fetch the test models, then run every test (ARGS go to `cargo test`)
  ci                 what must pass before a change lands: fmt, clippy, tidy, canaries, inlining, units, a smoke run, tests
  batch-check        a batch whose command and daemon are killed gives the answers of one that is left alone
  clients            the vendors' own clients, unmodified, against a real daemon: `clients/`
  tidy               arrows between crates, file headers, line budgets, `unsafe` only in kernels, no leaks
  canaries           prove that every ban of clippy.toml and every denied lint is caught
  inlining           prove that no release kernel calls an intrinsic that should have been inlined
  models [NAME..]    fetch the test models into the cache and check their sha256
  bench [ARGS]       prefill, decode and many sessions beside llama.cpp and the roofs; `cargo xtask bench --help` lists ARGS
  kv-bench [ARGS]    time to the first token from each tier, and what the KV store costs; `--help` lists ARGS
  serve-bench [ARGS] many sessions at once, beside llama.cpp, and while a long prompt arrives; `--help` lists ARGS
  http-bench [ARGS]  connections, streams and the way of a token; `--help` lists ARGS
  perplexity         the test models on this project's documentation, beside llama.cpp; needs ZLLM_PEER_PYTHON
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    match (command.as_str(), rest.as_slice()) {
        ("quickstart", []) => quickstart::run(),
        ("test", _) => test::run(&rest),
        ("ci", []) => ci::run(),
        ("batch-check", []) => batch_check::run(),
        ("clients", []) => clients::run(),
        ("tidy", []) => tidy::run(),
        ("canaries", []) => canaries::run(),
        ("inlining", []) => inlining::run(),
        ("models", names) => models::run(names),
        ("bench", _) => bench::run(&rest),
        ("kv-bench", _) => kv_bench::run(&rest),
        ("serve-bench", _) => serve_bench::run(&rest),
        ("http-bench", _) => http_bench::run(&rest),
        ("perplexity", []) => perplexity::run(),
        ("help" | "--help" | "-h", _) => {
            print!("{USAGE}");
            Ok(())
        }
        (
            "quickstart" | "ci" | "batch-check" | "clients" | "tidy" | "canaries" | "inlining" | "perplexity",
            extra,
        ) => {
            bail!("`cargo xtask {command}` takes no arguments, got {extra:?}")
        }
        _ => {
            eprint!("{USAGE}");
            bail!("no command {command:?}")
        }
    }
}
