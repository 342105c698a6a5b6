//! `completions` and `man`, from the definition of the command line.

use crate::cli::{Cli, Shell};
use crate::failure::Failure;
use clap::CommandFactory;
use std::{
    fs,
    io::{self, Write},
    path::Path,
};

/// `completions`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "zllmctl", &mut script);
    io::stdout().lock().write_all(&script).map_err(Failure::stdout)
}

/// `man`: one page to stdout, or a page for each command into a folder.
pub(crate) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    match dir {
        None => {
            clap_mangen::Man::new(Cli::command()).render(&mut io::stdout().lock()).map_err(Failure::stdout)
        }
        Some(dir) => {
            fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir)).map_err(
                |error| Failure::Failed(format!("cannot write man pages into {}: {error}", dir.display())),
            )
        }
    }
}
