//! `cargo xtask models`: the real models that tests and benches run, in a cache outside the checkout.
//!
//! A model is fetched by the workspace's own `zllmctl pull`; its sha256 is checked here a second time, because the tests'
//! expectations hold for these bytes alone. A marker file beside the model remembers length and time of what was
//! checked, so that the 800 MB are not hashed before every test run.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process;

/// One test model: `NAME.gguf` in the cache.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
}

/// The three models, as `zllmctl`'s built-in catalogue has them.
pub(crate) const MODELS: [Model; 3] = [
    Model {
        name: "smollm2-135m",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    Model {
        name: "gemma3-270m",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
    Model {
        name: "qwen2.5-coder-0.5b",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
];

/// Fetches the named models, or all.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let mut wanted = Vec::new();
    for name in names {
        wanted.push(find(name)?);
    }
    if wanted.is_empty() {
        wanted.extend(&MODELS);
    }
    let folder = cache_dir()?;
    ensure(&wanted, &folder, || {
        let mut zllmctl = process::cargo();
        zllmctl.args(["run", "--quiet", "--package", "zllmctl", "--"]);
        zllmctl
    })?;
    for model in wanted {
        println!("{}", path_of(model, &folder).display());
    }
    Ok(())
}

/// The model of that name.
pub(crate) fn find(name: &str) -> Result<&'static Model> {
    MODELS.iter().find(|model| model.name == name).with_context(|| {
        format!("no test model {name:?}; there are {}", MODELS.map(|model| model.name).join(", "))
    })
}

/// `$ZLLM_MODELS_DIR`, else `$XDG_CACHE_HOME/zllm/models`, else `~/.cache/zllm/models`; the tests look in the same order.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    process::cache("ZLLM_MODELS_DIR", "models")
}

/// The model's file in the cache.
pub(crate) fn path_of(model: &Model, folder: &Path) -> PathBuf {
    folder.join(format!("{}.gguf", model.name))
}

/// Makes sure that each model lies in `folder` with the right bytes; `zllmctl` gives the program that pulls.
pub(crate) fn ensure(models: &[&Model], folder: &Path, mut zllmctl: impl FnMut() -> Command) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    for model in models {
        let path = path_of(model, folder);
        if is_verified(model, &path) || verify(model, &path).is_ok() {
            continue;
        }
        eprintln!("fetching {} ({} MB) into {}", model.name, model.bytes / 1_000_000, folder.display());
        process::run(zllmctl().args(["pull", model.name, "--models-dir"]).arg(folder))?;
        verify(model, &path)?;
    }
    Ok(())
}

/// Hashes the file and, when it is right, leaves the marker.
fn verify(model: &Model, path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).with_context(|| format!("no model at {}", path.display()))?;
    if metadata.len() != model.bytes {
        bail!(
            "{} has {} bytes, not {}: remove it and try again",
            path.display(),
            metadata.len(),
            model.bytes
        );
    }
    let found = sha256_of(path)?;
    if found != model.sha256 {
        bail!("{} has sha256 {found}, not {}: remove it and try again", path.display(), model.sha256);
    }
    // A cache that cannot be written to (a read-only mount) costs a hash each time and nothing else.
    if let Err(error) = fs::write(marker_of(path), marker_text(model, &metadata)) {
        eprintln!("note: could not write {}: {error}", marker_of(path).display());
    }
    Ok(())
}

/// Does the marker say that just this file was already hashed?
fn is_verified(model: &Model, path: &Path) -> bool {
    let (Ok(metadata), Ok(text)) = (fs::metadata(path), fs::read_to_string(marker_of(path))) else {
        return false;
    };
    text == marker_text(model, &metadata)
}

fn marker_of(path: &Path) -> PathBuf {
    path.with_extension("gguf.verified")
}

fn marker_text(model: &Model, metadata: &fs::Metadata) -> String {
    format!("{} {} {}.{:09}\n", model.sha256, metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sha256sum` of "zllm\n".
    const SMALL: Model = Model {
        name: "small",
        bytes: 5,
        sha256: "6c740203d11e9be8dbcb53a7e45e80b2d349c2bc64758c2be7324c434cbe3eb5",
    };

    #[test]
    fn a_right_file_is_hashed_once_and_a_changed_one_is_caught() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(&SMALL, folder.path());
        fs::write(&path, "zllm\n").unwrap();
        assert!(!is_verified(&SMALL, &path));
        ensure(&[&SMALL], folder.path(), || panic!("nothing to pull")).unwrap();
        assert!(is_verified(&SMALL, &path));

        fs::write(&path, "zlln\n").unwrap();
        File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(!is_verified(&SMALL, &path));
        assert!(verify(&SMALL, &path).unwrap_err().to_string().contains("sha256"));
    }

    #[test]
    fn a_pull_that_brings_wrong_bytes_or_fails_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let bring = |text: &'static str| {
            move || {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("printf '{text}' > $4/small.gguf"), "zllmctl"]);
                command
            }
        };
        assert!(ensure(&[&SMALL], folder.path(), bring("wrong")).is_err());
        assert!(ensure(&[&SMALL], folder.path(), || Command::new("false")).is_err());
        ensure(&[&SMALL], folder.path(), bring("zllm\\n")).unwrap();
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(find("smollm2-135m").is_ok());
        assert!(find("smollm2").unwrap_err().to_string().contains("gemma3-270m"));
    }
}
