//! `cargo xtask tidy`: the rules of the house that the compiler does not know.
//!
//! Each file below `tidy/` holds one family of checks as pure functions from text to violations, with tests that feed
//! them what must be caught; this file reads the tracked files, runs the checks and prints the counts.

mod arrows;
mod budgets;
mod docs;
mod leaks;
mod lexer;
mod manifest;
mod source;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// One broken rule.
#[derive(Debug, PartialEq)]
pub(crate) struct Violation {
    /// Relative to the workspace's root.
    path: String,
    /// Counted from 1; 0 means the file as a whole.
    line: usize,
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Relative to the workspace's root, with `/`.
    path: String,
    text: String,
}

/// Runs all checks over the files that git tracks or would track.
pub(crate) fn run() -> Result<()> {
    let files = text_files(process::root())?;
    let rust: Vec<&TextFile> = files.iter().filter(|file| file.path.ends_with(".rs")).collect();

    let mut violations = Vec::new();
    violations.extend(arrows::check(&files)?);
    violations.extend(manifest::check(&files)?);
    violations.extend(rust.iter().flat_map(|file| source::check(file)));
    violations.extend(budgets::check_files(&rust));
    violations.extend(files.iter().flat_map(leaks::check));
    violations.extend(docs::check(&files, |path| process::root().join(path).exists()));

    for note in budgets::long_functions(&rust).iter().chain(&manifest::unused(&files)?) {
        println!("note: {note}");
    }
    println!("{}", budgets::summary(&rust));
    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!("tidy: {} violations", violations.len());
    }
    println!("tidy: {} files, nothing to complain about", files.len());
    Ok(())
}

/// Every UTF-8 file that git tracks, and every new one that it does not ignore. A file deleted but still in git's index
/// is left out.
fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    let output = Command::new("git")
        // CI checks a tree out as another user than the one who builds; only a listing is asked for here.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("could not run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listing = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files = Vec::new();
    for path in listing.split_terminator('\0') {
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(TextFile { path: path.to_owned(), text });
        }
    }
    if files.is_empty() {
        bail!("git lists no files in {}", root.display());
    }
    Ok(files)
}
