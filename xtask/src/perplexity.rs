//! `cargo xtask perplexity`: how well the test models foretell this project's own documentation, ours beside llama.cpp
//! on the same ids, so that an error of ours that single logits would hide shows as a number that users know.
//!
//! The text is README.md, CHANGELOG.md, docs/*.md and the documentation comments of every crate, in the order of their
//! paths. It changes with the project; both sides always read the same.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::report::{self, machine, peer_python, physical_cores};
use crate::{models, process};

const TOKENS: &str = "20000";
/// The most that ours may be above or below llama.cpp's.
const ALLOWED: f64 = 0.005;

/// Measures, prints the table and writes it into docs/PERFORMANCE.md; fails when a model is outside [`ALLOWED`].
pub(crate) fn run() -> Result<()> {
    let python = peer_python().context("ZLLM_PEER_PYTHON must name a Python that has llama-cpp-python")?;
    let names: Vec<String> = models::MODELS.iter().map(|model| model.name.to_owned()).collect();
    models::run(&names)?;
    let build = ["build", "--release", "--package", "zllm-engine", "--example", "perplexity"];
    process::run(process::cargo().args(build))?;
    let target = process::target_dir()?;
    let (text, ids) = (target.join("tmp/documentation.txt"), target.join("tmp/documentation.ids"));
    fs::create_dir_all(target.join("tmp"))?;
    fs::write(&text, documentation(process::root())?)?;

    let threads = physical_cores().to_string();
    let mut table = format!(
        "{}; `cargo xtask perplexity`.\n\n\
         | model | tokens scored | llama.cpp | ours | ours / llama.cpp |\n|---|---:|---:|---:|---:|\n",
        machine(Some(&python))?
    );
    let mut outside = Vec::new();
    for name in &names {
        let model = models::path_of(models::find(name)?, &models::cache_dir()?);
        let mut ours = Command::new(target.join("release/examples/perplexity"));
        ours.arg(&model).arg(&text).args(["--tokens", TOKENS, "--threads", &threads]).arg("--ids").arg(&ids);
        let (scored, ours) = measured(&mut ours)?;
        let mut peer = Command::new(&python);
        peer.arg(process::root().join("xtask/peer/llama_cpp_perplexity.py")).arg(&model).arg(&ids);
        let (peer_scored, peer) = measured(peer.args(["--threads", &threads]))?;
        if scored != peer_scored {
            bail!("{name}: we scored {scored} tokens and llama.cpp {peer_scored}");
        }
        writeln!(table, "| {name} | {scored} | {peer:.4} | {ours:.4} | {:.5} |", ours / peer)?;
        // NaN is not inside.
        let inside = (ours / peer - 1.0).abs() <= ALLOWED;
        if !inside {
            outside.push(name.as_str());
        }
    }
    println!("{table}");
    report::write("docs/PERFORMANCE.md", "perplexity", &table)?;
    if outside.is_empty() {
        Ok(())
    } else {
        bail!("further than {ALLOWED} from llama.cpp: {}", outside.join(", "))
    }
}

/// Runs one side; the tokens it scored and their perplexity.
fn measured(command: &mut Command) -> Result<(u64, f64)> {
    let result = process::json(command)?;
    let scored = result["scored"].as_u64().context("no \"scored\"")?;
    Ok((scored, result["perplexity"].as_f64().context("no \"perplexity\"")?))
}

/// The project's documentation as one text.
pub(crate) fn documentation(root: &Path) -> Result<String> {
    let mut text = String::new();
    let mut files = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    collect(&root.join("docs"), "md", &mut files)?;
    for path in &files {
        text += &fs::read_to_string(path).with_context(|| path.display().to_string())?;
    }
    let mut sources = Vec::new();
    for part in ["kernels", "engine", "state", "wire", "daemon", "ctl"] {
        collect(&root.join(part).join("src"), "rs", &mut sources)?;
    }
    for path in &sources {
        let source = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        text += &comments(&source);
    }
    Ok(text)
}

/// The documentation comments of a source file, without their marks.
fn comments(source: &str) -> String {
    let lines = source.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))
    });
    lines.fold(String::new(), |text, line| text + line.trim() + "\n") + "\n"
}

/// The files below `folder` that end in `.extension`, in the order of their paths.
fn collect(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, extension, files)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_is_long_enough_and_has_no_code() {
        let text = documentation(process::root()).unwrap();
        assert!(text.len() > 100_000, "{} bytes", text.len());
        assert_eq!(comments("//! One.\n\nuse x;\n    /// Two.\n// not this\nfn f() {}\n"), "One.\nTwo.\n\n");
    }
}
