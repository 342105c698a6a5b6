//! What each store in a folder does with its file, or with what lies there in its place.

use std::fs;
use std::path::Path;

use zllm_state::DatabaseError;

/// A store under test, which keeps numbered records.
pub(crate) trait Kept: Sized {
    const FILE: &'static str;
    /// How an error ends that says what to do.
    const WITHOUT: &'static str;

    fn open(dir: &Path) -> Result<Self, DatabaseError>;
    fn put(&mut self, number: u64) -> Result<(), DatabaseError>;
    fn has(&mut self, number: u64) -> bool;
}

/// All of it.
pub(crate) fn keeps_its_file<S: Kept>() {
    a_second_daemon_is_told_so::<S>();
    what_cannot_be_used_is_left_alone::<S>();
    an_unfinished_database_is_made_again::<S>();
    a_removed_file_is_an_error_and_not_replaced::<S>();
}

fn a_second_daemon_is_told_so<S: Kept>() {
    let dir = tempfile::tempdir().unwrap();
    let store = S::open(dir.path()).unwrap();
    let Err(error) = S::open(dir.path()) else { panic!("it is open twice") };
    assert!(matches!(error, DatabaseError::InUse { .. }), "{error}");
    drop(store);
    S::open(dir.path()).unwrap();
}

/// What is no database of ours stays as it is, and the error says what to do.
fn what_cannot_be_used_is_left_alone<S: Kept>() {
    for content in [&b""[..], b"not a database\n", &[7; 100_000], &[0; 1 << 20]] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(S::FILE);
        fs::write(&file, content).unwrap();
        for _ in 0..2 {
            let Err(error) = S::open(dir.path()) else { panic!("{content:?} is used") };
            assert!(matches!(error, DatabaseError::Unusable { .. }), "{error}");
            assert!(error.to_string().starts_with(&file.display().to_string()), "{error}");
            let end = format!("move it away, and the daemon starts {}", S::WITHOUT);
            assert!(error.to_string().ends_with(&end), "{error}");
            assert_eq!(fs::read(&file).unwrap(), content);
        }
    }
}

/// A file of an earlier try that a power cut ended.
fn an_unfinished_database_is_made_again<S: Kept>() {
    let dir = tempfile::tempdir().unwrap();
    let unfinished = dir.path().join(format!("{}.new", S::FILE));
    fs::write(&unfinished, vec![7; 100_000]).unwrap();
    let mut store = S::open(dir.path()).unwrap();
    assert!(!unfinished.exists());
    store.put(1).unwrap();
}

/// What is written to a file that was removed is lost with the process: it is not called durable, and no empty file takes
/// its place while the daemon believes that its records are stored.
fn a_removed_file_is_an_error_and_not_replaced<S: Kept>() {
    let dir = tempfile::tempdir().unwrap();
    let (file, away) = (dir.path().join(S::FILE), dir.path().join("away"));
    let mut store = S::open(dir.path()).unwrap();
    store.put(1).unwrap();
    fs::rename(&file, &away).unwrap();
    for _ in 0..2 {
        let error = store.put(2).unwrap_err();
        assert!(matches!(error, DatabaseError::Io { .. }), "{error}");
        assert!(!file.exists());
    }
    fs::rename(&away, &file).unwrap();
    store.put(3).unwrap();
    assert!(store.has(1) && store.has(3));
}
