//! The listening socket: handed over by systemd, or bound at a path that nobody else uses.
//!
//! A socket file that a dead daemon left is replaced; one that is answered is not, nor is anything that is no socket.
//! Two daemons that start at once are kept apart by a lock on a file beside the socket, held as long as the daemon lives.

use super::peer::PeerPolicy;
use crate::limits::MAX_SOCKET_PATH_BYTES;
use anyhow::{Context, bail, ensure};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket that is bound and listens.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listener: UnixListener,
    file: Option<SocketFile>,
}

/// The file of a socket that we bound: ours to remove.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode: another daemon may have put its own file there.
    identity: (u64, u64),
    _lock: File,
}

/// Takes systemd's socket if there is one, else binds `path`. Called before any thread starts: the umask is the
/// process's.
///
/// # Errors
/// Why nobody can listen there, with the system's reason.
pub(crate) fn listen(path: &Path, policy: &PeerPolicy) -> anyhow::Result<Listening> {
    let inherited =
        listenfd::ListenFd::from_env().take_unix_listener(0).context("the socket handed over by systemd")?;
    let listening = match inherited {
        Some(listener) => Listening { listener, file: None },
        None => bind(path, policy)?,
    };
    listening.listener.set_nonblocking(true).context("the listening socket")?;
    Ok(listening)
}

/// Binds a further socket (the metrics') by the same rules.
///
/// # Errors
/// As [`listen`].
pub(crate) fn bind(path: &Path, policy: &PeerPolicy) -> anyhow::Result<Listening> {
    let shown = path.display();
    let bytes = path.as_os_str().as_bytes().len();
    ensure!(
        bytes <= MAX_SOCKET_PATH_BYTES,
        "socket path {shown} has {bytes} bytes; a Unix socket's path has at most {MAX_SOCKET_PATH_BYTES}"
    );
    make_folder(path)?;
    let lock = lock_beside(path)?;
    clear_stale(path)?;
    // The file must never be open to others, not even for a moment.
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound.with_context(|| format!("cannot listen on {shown}"))?;
    if let Some(group) = policy.group() {
        chown(path, None, Some(group.as_raw()))
            .with_context(|| format!("cannot give {shown} to group {group}; is the daemon's user in it?"))?;
        fs::set_permissions(path, Permissions::from_mode(0o660))
            .with_context(|| format!("mode of {shown}"))?;
    }
    let metadata = fs::symlink_metadata(path).with_context(|| format!("cannot look at {shown}"))?;
    let identity = (metadata.dev(), metadata.ino());
    Ok(Listening { listener, file: Some(SocketFile { path: path.into(), identity, _lock: lock }) })
}

impl Listening {
    /// Splits off what removes the file when it is dropped.
    pub(crate) fn into_parts(self) -> (UnixListener, SocketGuard) {
        (self.listener, SocketGuard(self.file))
    }
}

/// Removes the socket's file when dropped, if it is still ours.
#[derive(Debug)]
pub(crate) struct SocketGuard(Option<SocketFile>);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let Some(file) = &self.0 else { return };
        let same = fs::symlink_metadata(&file.path).is_ok_and(|now| (now.dev(), now.ino()) == file.identity);
        if same && let Err(error) = fs::remove_file(&file.path) {
            tracing::warn!(path = %file.path.display(), %error, "the socket file could not be removed");
        }
    }
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    if let Ok(found) = fs::metadata(folder) {
        // Whoever owns the folder can put another socket in our place.
        let (owner, us) = (found.uid(), geteuid().as_raw());
        if owner != us && owner != 0 {
            bail!("the socket's folder {} belongs to user {owner}, not to {us} or root", folder.display());
        }
        return Ok(());
    }
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the socket's folder {}", folder.display()))?;
    // Nobody else has a use for a folder that we made: a shared one is made by tmpfiles or by hand.
    fs::set_permissions(folder, Permissions::from_mode(0o700))
        .with_context(|| format!("mode of the socket's folder {}", folder.display()))
}

fn lock_beside(path: &Path) -> anyhow::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let shown = lock.display();
    // Nobody else may open it: whoever can, can lock it and keep the daemon from starting.
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock);
    let file = file.with_context(|| format!("cannot open the lock {shown} beside the socket"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            bail!("another daemon holds {shown}; it already serves {}", path.display())
        }
        Err(fs::TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {shown}")),
    }
}

/// Removes what a dead daemon left at `path`.
fn clear_stale(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {shown}")),
    };
    ensure!(
        metadata.file_type().is_socket(),
        "{shown} exists and is no socket; move it away or choose another path with --socket"
    );
    match UnixStream::connect(path) {
        Ok(_) => bail!("another daemon answers on {shown}"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(path = %shown, "replacing a socket that nobody answers");
            fs::remove_file(path).with_context(|| format!("cannot replace the stale socket {shown}"))
        }
        Err(error) => Err(error).with_context(|| format!("cannot tell whether a daemon answers on {shown}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> PeerPolicy {
        PeerPolicy::new(None).expect("no group")
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).expect("bind"));
        assert!(path.exists(), "std leaves the file");
        let listening = bind(&path, &policy()).expect("a stale socket is replaced");
        let mode = fs::metadata(&path).expect("bound").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let error = bind(&path, &policy()).expect_err("a live one is not").to_string();
        assert!(error.contains("another daemon"), "{error}");

        let (_, guard) = listening.into_parts();
        drop(guard);
        assert!(!path.exists());
        bind(&path, &policy()).expect("free again");
    }

    #[test]
    fn a_foreign_listener_without_our_lock_is_respected() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("s");
        let _foreign = UnixListener::bind(&path).expect("bind");
        let error = bind(&path, &policy()).expect_err("it answers").to_string();
        assert!(error.contains("another daemon answers"), "{error}");
    }

    #[test]
    fn files_long_paths_and_closed_folders_get_plain_words() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("file");
        fs::write(&path, "precious").expect("scratch file");
        let error = bind(&path, &policy()).expect_err("a file").to_string();
        assert!(error.contains("is no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");

        let long = folder.path().join("x".repeat(120));
        let error = bind(&long, &policy()).expect_err("too long").to_string();
        assert!(error.contains("at most 107"), "{error}");

        let below_a_file = path.join("s");
        let error = format!("{:#}", bind(&below_a_file, &policy()).expect_err("no folder"));
        assert!(error.contains("os error"), "the system's reason is told: {error}");
    }

    #[test]
    fn a_file_that_is_not_ours_any_more_stays() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("s");
        let (_listener, guard) = bind(&path, &policy()).expect("bind").into_parts();
        fs::rename(&path, folder.path().join("moved")).expect("move");
        fs::write(&path, "another's").expect("another's");
        drop(guard);
        assert!(path.exists());
    }
}
