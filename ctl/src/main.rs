//! `zllmctl`: the command line of zllm.
//!
//! Results go to stdout, everything else to stderr. Exit codes: see [`failure::Failure::exit_code`].
#![forbid(unsafe_code)]

mod batch;
mod bench;
mod chat;
mod cli;
mod client;
mod clock;
mod events;
mod failure;
mod follow;
mod generate;
mod inspect;
mod interrupt;
mod jobs;
mod keys;
mod limits;
mod models;
mod orders;
mod output;
mod pull;
mod queue;
mod residency;
mod sessions;
mod shell;
mod status;
mod timeline;
mod tokenize;
mod top;
mod units;
mod why;
mod words;

use clap::Parser;
use cli::{Cli, Command};
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are results too; a stdout that is gone is no reason to say more.
            let _ = error.print();
            return if error.use_stderr() { failure::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("zllmctl: {}", output::printable(&message));
            }
            failure.exit_code().into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let context = client::Context::new(&cli.global);
    match cli.command {
        Command::Pull(args) => pull::pull(&context, &args),
        Command::Models => models::list(&context),
        Command::Inspect { model } => inspect::inspect(&context, model),
        Command::Load { model } => models::load(&context, &model),
        Command::Unload { model } => models::unload(&context, model),
        Command::Run(args) => generate::run(&context, args),
        Command::Submit(args) => generate::submit(&context, args),
        Command::Batch(args) => batch::batch(&context, args),
        Command::List { what, tenant } => jobs::list(&context, what, tenant),
        Command::Show { id, tenant } => jobs::show(&context, &id, tenant),
        Command::Why { job } => why::why(&context, job),
        Command::Attach(args) => follow::attach(&context, args),
        Command::Queue { all } => queue::queue(&context, all),
        Command::Cancel(args) => orders::cancel(&context, args),
        Command::Hold { job } => orders::hold(&context, job),
        Command::Drain => orders::drain(&context),
        Command::Resume { job } => orders::resume(&context, job),
        Command::Priority { job, class } => orders::priority(&context, job, class.into()),
        Command::Residency => residency::residency(&context),
        Command::Evict(args) => sessions::evict(&context, args),
        Command::Pin(session) => sessions::pin(&context, session),
        Command::Unpin(session) => sessions::unpin(&context, session),
        Command::Ttl { session, ttl } => sessions::ttl(&context, session, ttl),
        Command::Save(args) => sessions::save(&context, args),
        Command::Fork(args) => sessions::fork(&context, args),
        Command::Check => sessions::check(&context),
        Command::Keys(command) => keys::keys(&context, command),
        Command::Status => status::status(&context),
        Command::Top(args) => top::top(context, &args),
        Command::Bench(args) => bench::bench(&context, &args),
        Command::Stop { now, no_wait } => status::stop(&context, now, no_wait),
        Command::Tokenize(args) => tokenize::tokenize(&context, args),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { dir } => shell::man(dir.as_deref()),
    }
}
