//! Every bound of the command line, by name.

use std::time::Duration;
use zllm_wire::limits::{MAX_FRAME_BYTES, MAX_IN_FLIGHT};

/// How long a daemon that accepts a connection may take to answer the hello.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often `stop` looks whether the daemon's process has ended, once its connections are closed: giving back some
/// gigabytes of memory takes a moment.
pub(crate) const MAX_EXIT_POLLS: u32 = 1000;

/// The wait between two looks.
pub(crate) const EXIT_POLL: Duration = Duration::from_millis(10);

/// The wait before a lost connection is tried again; it doubles up to [`RECONNECT_DELAY_MAX`].
pub(crate) const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// The longest wait between two tries.
pub(crate) const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Columns that a page of the queue fits.
pub(crate) const QUEUE_COLUMNS: usize = 80;

/// Jobs that wait on a page of the queue, unless all are asked for.
pub(crate) const QUEUE_ROWS: usize = 20;

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

/// Largest file that one batch is read from.
pub(crate) const MAX_BATCH_FILE_BYTES: u64 = 256 << 20;

/// Longest line of it: what is made of it fits into a frame, with room for what stands beside the prompt.
pub(crate) const MAX_REQUEST_BYTES: usize = MAX_FRAME_BYTES - (64 << 10);

/// Faulty lines that are told of.
pub(crate) const MAX_FAULTS_TOLD: usize = 20;

/// Submissions of a batch in flight at once.
pub(crate) const MAX_SUBMITS_IN_FLIGHT: usize = 16;

/// Results of a batch that are read at once.
pub(crate) const MAX_READS_IN_FLIGHT: usize = 4;

const _: () = assert!(MAX_SUBMITS_IN_FLIGHT + MAX_READS_IN_FLIGHT < MAX_IN_FLIGHT);

/// The shortest wait after a refusal, whatever the daemon says.
pub(crate) const MIN_RETRY_WAIT: Duration = Duration::from_millis(50);

/// The longest.
pub(crate) const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

/// The wait after the daemon has failed to do something.
pub(crate) const FAULT_WAIT: Duration = Duration::from_secs(1);

/// How often it may fail before a batch gives up; what is in flight may fail together.
pub(crate) const MAX_FAULTS: u32 = 60;

/// The wait between two listings of a batch's jobs.
pub(crate) const POLL_PERIOD: Duration = Duration::from_secs(1);

/// How many times longer than a listing takes the wait after it is at least.
pub(crate) const POLL_SHARE: u32 = 10;

/// How long a batch waits for a daemon that does not answer.
pub(crate) const MAX_OUTAGE: Duration = Duration::from_secs(600);

/// The wait between two changes of a progress line at a terminal.
pub(crate) const PROGRESS_PERIOD: Duration = Duration::from_millis(250);

/// The wait between two lines of progress elsewhere.
pub(crate) const PROGRESS_LINE_PERIOD: Duration = Duration::from_secs(10);

/// The longest wait of `top` for a key before it looks what else there is.
pub(crate) const KEY_PERIOD: Duration = Duration::from_millis(100);

/// How many intervals `top` waits for news before it says that none comes.
pub(crate) const STALE_INTERVALS: u32 = 5;

/// Columns of a page that is not drawn at a terminal.
pub(crate) const PLAIN_COLUMNS: usize = 120;

/// Sessions that `bench` has decode at once: with their orders to end they fit into one connection.
pub(crate) const MAX_BENCH_SESSIONS: u32 = 32;

const _: () = assert!((MAX_BENCH_SESSIONS as usize) < MAX_IN_FLIGHT / 2 + 1);

/// Tokens of one test of `bench`.
pub(crate) const MAX_BENCH_TOKENS: u32 = 1 << 20;

/// The longest wait of `bench` for news before it looks whether Ctrl-C came.
pub(crate) const INTERRUPT_PERIOD: Duration = Duration::from_millis(100);

/// How long `bench` waits for its jobs to end, for their KV to be on the SSD and for it to be dropped.
pub(crate) const MAX_CLEANING: Duration = Duration::from_secs(60);
