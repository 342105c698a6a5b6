//! `zllmd`, the daemon: reads its configuration, binds its sockets, starts the actors and waits for its end.
//!
//! Exit codes: 0 after an orderly end, 1 when it cannot start or a second signal cut the end short, 64 for a wrong
//! command line, 70 after a death inside (a panic or a device's fault; systemd starts it again).
#![forbid(unsafe_code)]

mod app;
mod catalog;
mod clock;
mod config;
mod device;
mod http;
mod inspect;
mod job_disk;
mod keys;
mod kv_store;
mod limits;
mod metrics;
mod notify;
mod object_disk;
mod panics;
mod pulse;
mod scheduler;
mod server;
mod services;
mod stop;

use clap::Parser;
use config::{Cli, Config};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    match start(&cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("zllmd: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn start(cli: &Cli) -> anyhow::Result<ExitCode> {
    let clock = clock::Clock::start();
    let config = Config::read(cli)?;
    if cli.check_config {
        println!("{}", config.summary());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &cli.inspect {
        println!("{}", inspect::inspect(file, &config.model_defaults, None)?);
        return Ok(ExitCode::SUCCESS);
    }
    let filter = EnvFilter::try_new(&config.log)
        .map_err(|error| anyhow::anyhow!("log is {:?}: {error}; a level such as info works", config.log))?;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    panics::install_hook();
    raise_file_limit();
    // Before any thread: binding sets the process's umask for a moment.
    let bound = app::Bound::bind(&config)?;
    let memory = device::cpu::MemoryInUse::default();
    let device = |settings: &config::DeviceSettings| {
        Box::new(device::cpu::CpuDevice::new(settings.clone(), memory.clone())) as _
    };
    let devices = config.devices.iter().map(device).collect();
    let system = actix::System::new();
    let ended = system.block_on(app::run(config, bound, devices, clock));
    // Its end would wait for blocking threads, and one may hang in a disk that does not answer.
    std::mem::forget(system);
    match ended {
        Ok(app::Ended::Orderly) => Ok(ExitCode::SUCCESS),
        Ok(app::Ended::AtOnce) => Ok(ExitCode::from(1)),
        Err(error) if panics::latest().is_some() => {
            eprintln!("zllmd: {error:#}");
            Ok(ExitCode::from(70))
        }
        Err(error) => Err(error),
    }
}

/// Lets the process have as many connections open as the system allows it: the lower limit that it starts with is there for
/// programs that could not use more.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it was");
    }
}
