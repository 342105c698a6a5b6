//! Every bound of the command line, by name.

use std::time::Duration;

/// How long a daemon that accepts a connection may take to answer the hello.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often `stop` looks whether the daemon's process has ended, once its connections are closed: giving back some
/// gigabytes of memory takes a moment.
pub(crate) const MAX_EXIT_POLLS: u32 = 1000;

/// The wait between two looks.
pub(crate) const EXIT_POLL: Duration = Duration::from_millis(10);

/// How often a lost connection is tried again without any event in between.
pub(crate) const MAX_RECONNECTS: u32 = 10;

/// The wait before the first of them; it doubles up to [`RECONNECT_DELAY_MAX`].
pub(crate) const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// The longest wait between two of them.
pub(crate) const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Bytes read from the socket at once.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Bytes copied at once when a model file is fetched.
pub(crate) const COPY_BYTES: usize = 1 << 20;

/// How often an HTTP transfer that breaks off is taken up again where it was.
pub(crate) const MAX_HTTP_RESUMES: u32 = 8;

/// How long an HTTP server may be silent.
pub(crate) const HTTP_SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Lines that the chat's history file keeps.
pub(crate) const HISTORY_LINES: usize = 1000;
