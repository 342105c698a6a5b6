//! The file of keys: JSON, replaced as a whole.

use super::{Key, KeysError};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zllm_wire::KeySettings;
use zllm_wire::limits::MAX_KEYS;

/// What the file says that it is.
const FORMAT: u32 = 1;

/// Bytes that it may have: more than the most and longest keys take.
const MAX_FILE_BYTES: u64 = 1024 * MAX_KEYS as u64;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    keys: Vec<StoredKey>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredKey {
    settings: KeySettings,
    created_unix_s: u64,
    /// Of the whole key, in hexadecimal digits.
    blake3: String,
}

/// The keys in it; none when it is not there.
pub(super) fn read(path: &Path) -> Result<Vec<Arc<Key>>, KeysError> {
    let file = match File::open(path) {
        Ok(file) => file,
        // Nor is it where its folder is none.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(io(path, "open")(error)),
    };
    let mode = file.metadata().map_err(io(path, "look at"))?.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(KeysError::Exposed { path: path.to_path_buf(), mode });
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(io(path, "read"))?;
    parse(&text).map_err(|reason| KeysError::Malformed { path: path.to_path_buf(), reason })
}

fn parse(text: &str) -> Result<Vec<Arc<Key>>, String> {
    let stored: Stored = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if stored.format != FORMAT {
        return Err(format!("its format is {}, and this zllmd knows {FORMAT}", stored.format));
    }
    let mut keys: Vec<Arc<Key>> = Vec::with_capacity(stored.keys.len());
    for StoredKey { settings, created_unix_s, blake3 } in stored.keys {
        let name = &settings.name;
        let hash =
            blake3::Hash::from_hex(&blake3).map_err(|error| format!("the hash of key {name}: {error}"))?;
        if keys.iter().any(|known| known.settings.name == *name) {
            return Err(format!("it has two keys {name}"));
        }
        keys.push(Arc::new(Key::new(settings, created_unix_s, hash)));
    }
    Ok(keys)
}

/// Replaces the file: a power cut leaves the old one or the new one.
pub(super) fn write(path: &Path, keys: &[Arc<Key>]) -> Result<(), KeysError> {
    let stored = |key: &Arc<Key>| StoredKey {
        settings: key.settings.clone(),
        created_unix_s: key.created_unix_s,
        blake3: key.hash.to_hex().to_string(),
    };
    let stored = Stored { format: FORMAT, keys: keys.iter().map(stored).collect() };
    let mut text = serde_json::to_string_pretty(&stored).expect("our own types become JSON");
    text.push('\n');
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io(folder, "make the folder of"))?;
    let new = PathBuf::from(format!("{}.new", path.display()));
    // What a crash left there may have another mode.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(&new, "replace")(error)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let mut file = file.map_err(io(&new, "make"))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io(&new, "write"))?;
    std::fs::rename(&new, path).map_err(io(path, "replace"))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io(path, "sync the folder of"))
}

fn io(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> KeysError {
    move |error| KeysError::Io { path: path.to_path_buf(), what, error }
}
