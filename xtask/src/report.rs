//! Where a measurement was made, and where its tables go: the parts of README.md and docs/ between a command's markers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// The Python that has llama.cpp.
pub(crate) fn peer_python() -> Option<PathBuf> {
    std::env::var_os("ZLLM_PEER_PYTHON").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Replaces what stands between the markers of `cargo xtask COMMAND` in a file of the checkout.
pub(crate) fn write(file: &str, command: &str, text: &str) -> Result<()> {
    let path = process::root().join(file);
    let document = fs::read_to_string(&path).context(file.to_owned())?;
    fs::write(&path, spliced(&document, command, text).context(file.to_owned())?)?;
    println!("written to {file}");
    Ok(())
}

fn spliced(document: &str, command: &str, text: &str) -> Result<String> {
    let [begin, end] = ["begin", "end"].map(|place| format!("<!-- cargo xtask {command}: {place} -->"));
    let (before, rest) = document.split_once(&begin).with_context(|| format!("no line {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim()))
}

/// CPU, commit and peer in one line.
pub(crate) fn machine(peer: Option<&Path>) -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = field(&cpuinfo, "model name").next().unwrap_or("unknown CPU").to_owned();
    let commit =
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(process::root()).output()?;
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    let Some(python) = peer else { return Ok(format!("{cpu}; zllm {commit}")) };
    let ask = ["-c", "import llama_cpp; print(llama_cpp.__version__)"];
    let version = Command::new(python).args(ask).output().context("ZLLM_PEER_PYTHON")?;
    if !version.status.success() {
        bail!("ZLLM_PEER_PYTHON has no llama_cpp: {}", String::from_utf8_lossy(&version.stderr).trim());
    }
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    Ok(format!("{cpu}; zllm {commit}; llama.cpp of llama-cpp-python {version}"))
}

/// Cores, not hyper-threads: a second thread on a core brings these kernels nothing.
pub(crate) fn physical_cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores: BTreeSet<_> = field(&cpuinfo, "physical id").zip(field(&cpuinfo, "core id")).collect();
    if cores.is_empty() { allowed } else { cores.len().min(allowed) }
}

fn field<'a>(cpuinfo: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    cpuinfo.lines().filter_map(move |line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_changes() {
        let [begin, end] = ["<!-- cargo xtask bench: begin -->", "<!-- cargo xtask bench: end -->"];
        let document = format!("# P\n{begin}\nold\n{end}\nrest\n");
        let wanted = format!("# P\n{begin}\n\nnew\n\n{end}\nrest\n");
        assert_eq!(spliced(&document, "bench", "new\n").unwrap(), wanted);
        assert!(spliced(&document, "perplexity", "new").is_err());
        assert!(spliced(&format!("# P\n{begin}\n"), "bench", "new").is_err());
    }
}
