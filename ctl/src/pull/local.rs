//! A model from a file of this machine: a hard link where the file system allows one, else a copy.

use super::partial::{Partial, check_magic, copy, failed};
use crate::failure::Failure;
use crate::output;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Brings the file into the folder.
pub(super) fn fetch(source: &Path, partial: &Partial) -> Result<PathBuf, Failure> {
    let metadata = fs::metadata(source).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::Refused(format!("there is no file {}", source.display())),
        _ => failed("read", source, &error),
    })?;
    if !metadata.is_file() {
        return Err(Failure::Refused(format!("{} is no file", source.display())));
    }
    check_magic(source)
        .map_err(|difference| Failure::Refused(format!("{} {difference}", source.display())))?;
    let file = partial.path("local");
    // Left over from a pull that broke off; it may be half a copy.
    let _ = fs::remove_file(&file);
    // A link to a symbolic link would be one too, so it is followed first.
    let real = source.canonicalize().map_err(|error| failed("read", source, &error))?;
    if fs::hard_link(&real, &file).is_ok() {
        return Ok(file);
    }
    partial.require_space(metadata.len())?;
    let bar = output::bytes_bar("copying", metadata.len());
    let mut from = File::open(&real).map_err(|error| failed("read", source, &error))?;
    let mut to = File::create(&file).map_err(|error| failed("write", &file, &error))?;
    copy(&mut from, &mut to, &bar, |_| {}).map_err(|error| failed("copy to", &file, &error))?;
    bar.finish_and_clear();
    Ok(file)
}
