//! API keys: who may ask over TCP, and as whom.
//!
//! A key is 256 random bits. So its plain hash is all that need be kept: there is nothing to guess, and neither salt nor a
//! slow hash would make it harder. What is given is hashed before it is compared, so how long a comparison takes says nothing
//! of any key, and it is compared with all of them, each in constant time.
//!
//! Invariants: the keys in memory are those of the file, and a change is in the file, synced, before it holds. A file that
//! cannot be read ends the start: without its keys everybody on this machine would be let in.

mod file;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zllm_wire::limits::MAX_KEYS;
use zllm_wire::{ErrorCode, Fault, KeyInfo, KeyName, KeySettings};

/// What every key begins with, so that people and scanners know one when they see it.
const PREFIX: &str = "zllm-";

/// All keys.
#[derive(Debug)]
pub(crate) struct Keys {
    /// `None`: there is no folder for it, so there can be no keys.
    file: Option<PathBuf>,
    /// Sorted by name.
    table: RwLock<Arc<[Arc<Key>]>>,
    /// Held over a change, from reading the table to replacing it.
    changing: Mutex<()>,
}

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) settings: KeySettings,
    created_unix_s: u64,
    hash: blake3::Hash,
    /// Requests that it may yet have under way.
    free: Option<Arc<Semaphore>>,
}

/// Why keys cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error("cannot {what} the file of keys {}: {error}", path.display())]
    Io { path: PathBuf, what: &'static str, error: std::io::Error },
    #[error("the file of keys {} is not as zllmd writes it: {reason}; put it right, or away to have no keys", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error("the file of keys {} may be written by others (mode {mode:03o}); chmod 600 mends that", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("there is a key {name} already; revoke it first, or choose another name")]
    Taken { name: KeyName },
    #[error("there is no key {name}")]
    Unknown { name: KeyName },
    #[error("there are {MAX_KEYS} keys, and there may not be more")]
    Full,
    #[error("max_requests is 0; at least 1 works, or none for any number")]
    NoRequests,
    #[error("there is no folder for the file of keys; set http.keys or kv.dir")]
    NoPlace,
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

impl From<KeysError> for Fault {
    fn from(error: KeysError) -> Self {
        let code = match &error {
            KeysError::Unknown { .. } => ErrorCode::NotFound,
            KeysError::Taken { .. } | KeysError::Full | KeysError::NoRequests | KeysError::NoPlace => {
                ErrorCode::Invalid
            }
            _ => ErrorCode::Failed,
        };
        Self { code, message: error.to_string() }
    }
}

impl Keys {
    /// Reads the keys; a file that is not there has none.
    ///
    /// # Errors
    /// A file that cannot be read, is not ours alone to write, or is not as it was written.
    pub(crate) fn open(file: Option<PathBuf>) -> Result<Self, KeysError> {
        let keys = file.as_deref().map_or(Ok(Vec::new()), file::read)?;
        Ok(Self { file, table: RwLock::new(sorted(keys)), changing: Mutex::new(()) })
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// The key that this is.
    pub(crate) fn find(&self, given: &[u8]) -> Option<Arc<Key>> {
        let hash = blake3::hash(given);
        // All are looked at, whichever it is.
        self.table().iter().fold(None, |found, key| if key.hash == hash { Some(key.clone()) } else { found })
    }

    /// What is known of each.
    pub(crate) fn list(&self) -> Vec<KeyInfo> {
        self.table().iter().map(|key| key.info()).collect()
    }

    /// Makes a key and tells it, this one time. Waits for the disk.
    ///
    /// # Errors
    /// It may not be, or cannot be kept.
    pub(crate) fn add(&self, settings: KeySettings, now_unix_s: u64) -> Result<String, KeysError> {
        if settings.max_requests == Some(0) {
            return Err(KeysError::NoRequests);
        }
        let mut bits = [0; blake3::OUT_LEN];
        getrandom::fill(&mut bits).map_err(KeysError::Random)?;
        let text = format!("{PREFIX}{}", blake3::Hash::from_bytes(bits).to_hex());
        let key = Arc::new(Key::new(settings, now_unix_s, blake3::hash(text.as_bytes())));
        self.change(|keys| {
            let name = &key.settings.name;
            if keys.iter().any(|known| known.settings.name == *name) {
                return Err(KeysError::Taken { name: name.clone() });
            }
            if keys.len() >= MAX_KEYS {
                return Err(KeysError::Full);
            }
            keys.push(key);
            Ok(())
        })?;
        Ok(text)
    }

    /// Lets a key be none. Waits for the disk.
    ///
    /// # Errors
    /// There is none, or the disk does not take it.
    pub(crate) fn revoke(&self, name: &KeyName) -> Result<(), KeysError> {
        self.change(|keys| {
            let before = keys.len();
            keys.retain(|key| key.settings.name != *name);
            if keys.len() == before { Err(KeysError::Unknown { name: name.clone() }) } else { Ok(()) }
        })
    }

    /// Changes the keys on the disk, then in memory.
    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Arc<Key>>) -> Result<(), KeysError>,
    ) -> Result<(), KeysError> {
        let file = self.file.as_deref().ok_or(KeysError::NoPlace)?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = self.table().to_vec();
        change(&mut keys)?;
        let table = sorted(keys);
        file::write(file, &table)?;
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        Ok(())
    }

    fn table(&self) -> Arc<[Arc<Key>]> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Key {
    fn new(settings: KeySettings, created_unix_s: u64, hash: blake3::Hash) -> Self {
        let free = settings.max_requests.map(|most| Arc::new(Semaphore::new(most as usize)));
        Self { settings, created_unix_s, hash, free }
    }

    fn info(&self) -> KeyInfo {
        KeyInfo { settings: self.settings.clone(), created_unix_s: self.created_unix_s }
    }

    /// A place for one more request, which is held until it is answered; nothing to hold where there is no bound.
    ///
    /// # Errors
    /// How many are under way, when these are as many as may be.
    pub(crate) fn enter(&self) -> Result<Option<OwnedSemaphorePermit>, u32> {
        match (&self.free, self.settings.max_requests) {
            (Some(free), Some(most)) => free.clone().try_acquire_owned().map(Some).map_err(|_| most),
            _ => Ok(None),
        }
    }
}

fn sorted(mut keys: Vec<Arc<Key>>) -> Arc<[Arc<Key>]> {
    keys.sort_by(|a, b| a.settings.name.cmp(&b.settings.name));
    keys.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use zllm_wire::{Class, Tenant};

    fn settings(name: &str) -> KeySettings {
        KeySettings {
            name: KeyName::new(name).expect("a name"),
            tenant: Tenant::new("t").expect("a tenant"),
            class: Class::Normal,
            admin: false,
            max_requests: None,
        }
    }

    fn open(file: &Path) -> Keys {
        Keys::open(Some(file.to_path_buf())).expect("a good file")
    }

    #[test]
    fn a_key_is_found_until_it_is_revoked_and_after_a_restart() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let file = folder.path().join("state/keys.json");
        let keys = open(&file);
        assert!(keys.is_empty());
        let [first, second] = ["b", "a"].map(|name| keys.add(settings(name), 7).expect("room"));
        assert!(first.starts_with(PREFIX) && first.len() == PREFIX.len() + 64 && first != second);
        let keys = open(&file);
        assert_eq!(keys.find(first.as_bytes()).expect("known").settings, settings("b"));
        assert!(keys.find(&first.as_bytes()[1..]).is_none() && keys.find(b"").is_none());
        let names: Vec<_> = keys.list().into_iter().map(|info| info.settings.name.to_string()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(keys.list()[0].created_unix_s, 7);

        let name = KeyName::new("b").expect("a name");
        keys.revoke(&name).expect("it is there");
        assert!(matches!(keys.revoke(&name), Err(KeysError::Unknown { .. })));
        for keys in [keys, open(&file)] {
            assert!(keys.find(first.as_bytes()).is_none() && keys.find(second.as_bytes()).is_some());
        }
    }

    #[test]
    fn the_file_is_ours_alone_and_has_no_key_in_it() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let file = folder.path().join("keys.json");
        let key = open(&file).add(settings("a"), 7).expect("room");
        let mode = || std::fs::metadata(&file).expect("written").permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let text = std::fs::read_to_string(&file).expect("text");
        assert!(!text.contains(&key[PREFIX.len()..]) && text.contains("\"a\""), "{text}");
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            1,
            "nothing is left beside it"
        );

        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o620)).expect("ours");
        let error = Keys::open(Some(file)).expect_err("others may write it").to_string();
        assert!(error.contains("620") && error.contains("keys.json"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_as_it_was_written_lets_nobody_in() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let file = folder.path().join("keys.json");
        let keys = open(&file);
        keys.add(settings("a"), 7).expect("room");
        let good = std::fs::read_to_string(&file).expect("text");
        let twice = good.replace("\"keys\": [", &format!("\"keys\": [{},", one_key(&good)));
        let short = good.replace("\"blake3\": \"", "\"blake3\": \"0");
        let newer = good.replace("\"format\": 1", "\"format\": 2");
        for bad in ["", "{}", &good[..good.len() / 2], &twice, &short, &newer] {
            assert_ne!(bad, good);
            std::fs::write(&file, bad).expect("ours");
            let error = Keys::open(Some(file.clone())).expect_err(bad).to_string();
            assert!(error.contains("keys.json"), "{error}");
        }
    }

    fn one_key(file: &str) -> String {
        let value: serde_json::Value = serde_json::from_str(file).expect("JSON");
        value["keys"][0].to_string()
    }

    #[test]
    fn what_may_not_be_is_refused_and_changes_nothing() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let keys = open(&folder.path().join("keys.json"));
        keys.add(settings("a"), 7).expect("room");
        assert!(matches!(keys.add(settings("a"), 8), Err(KeysError::Taken { .. })));
        let none = KeySettings { max_requests: Some(0), ..settings("b") };
        assert!(matches!(keys.add(none, 8), Err(KeysError::NoRequests)));
        // A folder in the way of the file that would be renamed.
        std::fs::create_dir(folder.path().join("keys.json.new")).expect("scratch folder");
        assert!(matches!(keys.add(settings("b"), 8), Err(KeysError::Io { .. })));
        assert_eq!(keys.list().len(), 1);
        let nowhere = Keys::open(None).expect("no keys");
        assert!(matches!(nowhere.add(settings("a"), 7), Err(KeysError::NoPlace)));
    }

    #[test]
    fn a_key_has_no_more_requests_under_way_than_it_may() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let keys = open(&folder.path().join("keys.json"));
        let text = keys.add(KeySettings { max_requests: Some(2), ..settings("a") }, 7).expect("room");
        let enter = || keys.find(text.as_bytes()).expect("known").enter();
        let held = [enter().expect("the first"), enter().expect("the second")];
        assert_eq!(enter().expect_err("one too many"), 2);
        // Other keys change, and what this one has under way still counts.
        keys.add(settings("b"), 8).expect("room");
        assert!(enter().is_err());
        drop(held);
        assert!(enter().is_ok_and(|place| place.is_some()));
    }
}
