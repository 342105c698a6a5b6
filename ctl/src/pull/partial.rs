//! The folder that a model is made in, and the way from there to its place.
//!
//! Invariant: a file gets its final name only when its size, its sha256 and its first bytes are right and it is on
//! disk. One pull at a time works in a folder.

use crate::failure::Failure;
use crate::limits::COPY_BYTES;
use crate::{output, units};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// What is known of a file before it is here.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Its size.
    pub(super) bytes: Option<u64>,
    /// Its sha256, lower-case hexadecimal.
    pub(super) sha256: Option<String>,
}

/// A model file that is in its place.
#[derive(Debug, Clone)]
pub(super) struct Installed {
    /// The file.
    pub(super) path: PathBuf,
    /// Its size.
    pub(super) bytes: u64,
    /// Its sha256, lower-case hexadecimal.
    pub(super) sha256: String,
}

impl Installed {
    /// Reads the whole file.
    pub(super) fn measure(path: &Path) -> Result<Self, Failure> {
        let mut file = File::open(path).map_err(|error| failed("read", path, &error))?;
        let total = file.metadata().map_err(|error| failed("read", path, &error))?.len();
        let bar = output::bytes_bar("checking", total);
        let mut hasher = Sha256::new();
        let bytes = copy(&mut file, &mut io::sink(), &bar, |chunk| hasher.update(chunk))
            .map_err(|error| failed("read", path, &error))?;
        bar.finish_and_clear();
        Ok(Self { path: path.to_owned(), bytes, sha256: hex(&hasher.finalize()) })
    }
}

impl Expected {
    /// What is different, in words.
    pub(super) fn check(&self, found: &Installed) -> Result<(), String> {
        if let Some(bytes) = self.bytes.filter(|bytes| *bytes != found.bytes) {
            return Err(format!("has {} bytes instead of {bytes}", found.bytes));
        }
        match self.sha256.as_ref().filter(|sha256| **sha256 != found.sha256) {
            Some(sha256) => Err(format!("has the sha256 {} instead of {sha256}", found.sha256)),
            None => Ok(()),
        }
    }
}

/// The folder `NAME.partial`, locked.
pub(super) struct Partial {
    dir: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl Partial {
    /// Makes or finds the folder.
    pub(super) fn open(models_dir: &Path, name: &str) -> Result<Self, Failure> {
        let dir = models_dir.join(format!("{name}.partial"));
        fs::create_dir_all(&dir).map_err(|error| failed("make", &dir, &error))?;
        let lock_path = dir.join("lock");
        let lock = File::create(&lock_path).map_err(|error| failed("make", &lock_path, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir, target: models_dir.join(format!("{name}.gguf")), _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::Refused(format!("another pull of {name} is at work in {}", dir.display())))
            }
            Err(TryLockError::Error(error)) => Err(failed("lock", &lock_path, &error)),
        }
    }

    /// A path in the folder.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Refuses when the disk has no room for `bytes` more than what lies in the folder already.
    pub(super) fn require_space(&self, bytes: u64) -> Result<(), Failure> {
        let disk = nix::sys::statvfs::statvfs(&self.dir).map_err(|error| {
            Failure::Failed(format!("cannot ask for free space at {}: {error}", self.dir.display()))
        })?;
        let free = disk.blocks_available() * disk.fragment_size();
        let needed = bytes.saturating_sub(size_of(&self.dir));
        if needed <= free {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "not enough disk space in {}: {} needed, {} free; make room or choose another place with --models-dir",
            self.dir.display(),
            units::bytes(needed),
            units::bytes(free)
        )))
    }

    /// Checks the file and gives it its name; the folder goes away. A file that is wrong takes the folder with it,
    /// so that the next pull begins anew.
    pub(super) fn install(&self, file: &Path, expected: &Expected) -> Result<Installed, Failure> {
        let measured = Installed::measure(file)?;
        let difference = expected.check(&measured).and_then(|()| check_magic(file));
        if let Err(difference) = difference {
            self.remove();
            return Err(Failure::Failed(format!(
                "what was fetched for {} {difference}; nothing of it was kept",
                self.target.display()
            )));
        }
        let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
        sync(file)
            .and_then(|()| fs::rename(file, &self.target))
            .and_then(|()| sync(self.dir.parent().unwrap_or(&self.dir)))
            .map_err(|error| failed("move the model to", &self.target, &error))?;
        self.remove();
        Ok(Installed { path: self.target.clone(), ..measured })
    }

    fn remove(&self) {
        // What cannot be removed is only in the way of disk space.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Partial {
    /// A pull that fetched nothing leaves nothing.
    fn drop(&mut self) {
        let others = fs::read_dir(&self.dir).map_or(0, |entries| entries.flatten().count());
        if others <= 1 {
            self.remove();
        }
    }
}

/// Copies with a bar, showing each chunk to `see`; gives the bytes copied.
pub(super) fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    bar: &ProgressBar,
    mut see: impl FnMut(&[u8]),
) -> io::Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut copied = 0;
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..bytes])?;
        see(&buffer[..bytes]);
        copied += bytes as u64;
        bar.inc(bytes as u64);
    }
}

/// A file operation that failed, by what and where.
pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot {what} {}: {error}", path.display()))
}

/// Whether a file begins as GGUF files do; if not, what is different, in words.
pub(super) fn check_magic(file: &Path) -> Result<(), String> {
    let mut magic = [0; 4];
    match File::open(file).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Ok(()) => Err(format!("is no GGUF file: it begins with {magic:02x?}")),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err("is no GGUF file: it has fewer than 4 bytes".into())
        }
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of the files below a folder; what cannot be read counts nothing.
fn size_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_right_gets_its_name() {
        let models = tempfile::tempdir().unwrap();
        let sha256 = "9dbc5f1d0b3d0b0a0c1d"; // any: it is not reached in the first case
        let place = models.path().join("m.gguf");
        for (bytes, expected, complaint) in [
            (&b"GGUF1234"[..], Expected { bytes: Some(9), sha256: None }, "8 bytes instead of 9"),
            (b"GGUF1234", Expected { bytes: None, sha256: Some(sha256.into()) }, "sha256"),
            (b"<html>", Expected::default(), "no GGUF file"),
            (b"", Expected::default(), "no GGUF file"),
        ] {
            let partial = Partial::open(models.path(), "m").unwrap();
            let file = partial.path("whole");
            fs::write(&file, bytes).unwrap();
            let message = partial.install(&file, &expected).unwrap_err().to_string();
            assert!(message.contains(complaint), "{message}");
            assert!(!place.exists() && !models.path().join("m.partial").exists());
        }
        let partial = Partial::open(models.path(), "m").unwrap();
        let file = partial.path("whole");
        fs::write(&file, b"GGUF").unwrap();
        let installed = partial.install(&file, &Expected::default()).unwrap();
        assert_eq!((installed.path, installed.bytes), (place.clone(), 4));
        assert_eq!(fs::read(place).unwrap(), b"GGUF");
    }

    #[test]
    fn one_at_a_time() {
        let models = tempfile::tempdir().unwrap();
        let first = Partial::open(models.path(), "m").unwrap();
        assert!(matches!(Partial::open(models.path(), "m"), Err(Failure::Refused(_))));
        drop(first);
        assert!(Partial::open(models.path(), "m").is_ok());
    }

    #[test]
    fn a_full_disk_is_named() {
        let models = tempfile::tempdir().unwrap();
        let partial = Partial::open(models.path(), "m").unwrap();
        assert!(partial.require_space(1).is_ok());
        let message = partial.require_space(u64::MAX).unwrap_err().to_string();
        assert!(message.contains("not enough disk space") && message.contains("m.partial"), "{message}");
    }
}
