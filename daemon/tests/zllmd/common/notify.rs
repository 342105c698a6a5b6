//! The other end of `NOTIFY_SOCKET`.

use super::{PATIENCE, now};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Collects what a daemon tells systemd.
pub(crate) struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl NotifySocket {
    pub(crate) fn bind(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).expect("scratch socket");
        Self { socket, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a message with this line.
    pub(crate) fn expect(&self, line: &str) {
        let give_up = now() + PATIENCE;
        while now() < give_up {
            if self.next(Duration::from_millis(100)).is_some_and(|message| message.lines().any(|l| l == line))
            {
                return;
            }
        }
        panic!("no {line} within {PATIENCE:?}");
    }

    /// Messages with this line within `time`.
    pub(crate) fn count(&self, line: &str, time: Duration) -> usize {
        let end = now() + time;
        let mut count = 0;
        while now() < end {
            let message = self.next(Duration::from_millis(20));
            count += usize::from(message.is_some_and(|message| message.lines().any(|l| l == line)));
        }
        count
    }

    fn next(&self, timeout: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(timeout)).expect("a timeout");
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
