//! Every bound of the daemon, by name. What a user may want to change is in the configuration, with these as defaults.

use std::time::Duration;

/// Jobs that may wait; one more is refused with a time to come back.
pub(crate) const DEFAULT_QUEUED_JOBS: usize = 256;
/// Prompt tokens of all waiting jobs together.
pub(crate) const DEFAULT_QUEUED_PROMPT_TOKENS: usize = 4 << 20;
/// Request bytes (prompt and parameters) of all waiting jobs together.
pub(crate) const DEFAULT_QUEUED_BYTES: usize = 64 << 20;
/// Sequences that are computed side by side.
pub(crate) const DEFAULT_RUNNING_JOBS: usize = 8;
/// Prompt tokens computed between two decode steps: bounds what one prompt adds to the others' token intervals.
pub(crate) const DEFAULT_PREFILL_CHUNK_TOKENS: usize = 256;
/// How much longer a step may take for the prompt tokens in it, while other sequences decode.
pub(crate) const DEFAULT_PACE: f64 = 2.0;
/// Loosest bound of that kind; 0 is none.
pub(crate) const MAX_PACE: f64 = 1000.0;
/// How long a class may wait without a start before it goes before the class above it.
pub(crate) const DEFAULT_AGING_SECONDS: u64 = 60;
/// Longest such time: a day.
pub(crate) const MAX_AGING_SECONDS: u64 = 24 * 60 * 60;
/// How long an ended durable job is kept.
pub(crate) const DEFAULT_JOB_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Ended durable jobs that are kept; the oldest go first.
pub(crate) const DEFAULT_ENDED_JOBS: u64 = 10_000;
/// Bytes of requests and results that they may have together.
pub(crate) const DEFAULT_ENDED_JOB_BYTES: u64 = 1 << 30;
/// How long what clients put down is kept: as long as OpenAI keeps responses.
pub(crate) const DEFAULT_OBJECT_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Answers, conversations' items and files that are kept; the oldest go first.
pub(crate) const DEFAULT_OBJECTS: u64 = 100_000;
/// Bytes that they may have together.
pub(crate) const DEFAULT_OBJECT_BYTES: u64 = 4 << 30;
/// What one tenant may have of it: half, so that nobody alone pushes out what others put.
pub(crate) const fn tenant_share(all: u64) -> u64 {
    all.div_ceil(2)
}
/// Tokens generated for a request that names no limit. They are reserved at admission, so "as many as fit" would
/// let one request keep all others out.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 1024;
/// KV memory for the running jobs of a model that names no budget.
pub(crate) const DEFAULT_KV_BUDGET_BYTES: u64 = 512 << 20;
/// KV memory of the RAM tier of a model that names no budget.
pub(crate) const DEFAULT_RAM_BUDGET_BYTES: u64 = 512 << 20;
/// What the tier on SSD may take.
pub(crate) const DEFAULT_SSD_BUDGET_BYTES: u64 = 8 << 30;
/// Bytes that wait to be written to SSD at most: what a crash may lose.
pub(crate) const DEFAULT_UNSAVED_BUDGET_BYTES: u64 = 256 << 20;
/// How long a session that nobody uses is kept.
pub(crate) const DEFAULT_SESSION_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long saving may take at the daemon's end.
pub(crate) const DEFAULT_SAVE_SECONDS: u64 = 10;
/// Longest time for it that can be configured: an hour.
pub(crate) const MAX_SAVE_SECONDS: u64 = 60 * 60;
/// How long running jobs may go on after SIGTERM.
pub(crate) const DEFAULT_DRAIN_SECONDS: u64 = 30;
/// Longest drain that can be configured: a day.
pub(crate) const MAX_DRAIN_SECONDS: u64 = 24 * 60 * 60;
/// What is logged: all that an operator wants to know, without the HTTP server's own start.
pub(crate) const DEFAULT_LOG: &str = "info,actix_server=warn,actix_http=off";

/// Requests that are loading their model or tokenizing at one time, before they reach the queue.
pub(crate) const MAX_ARRIVING: usize = 64;
/// How many of them may be of class batch, half as in the queue: whoever waits for an answer finds a place while those wait for a
/// model.
pub(crate) const MAX_ARRIVING_BATCH: usize = MAX_ARRIVING / 2;
/// Tokenizing jobs on the blocking pool at one time; the rest wait their turn among [`MAX_ARRIVING`].
pub(crate) const MAX_ENCODING: usize = 2;
/// Devices that can be configured.
pub(crate) const MAX_DEVICES: usize = 16;
/// Longest name of a device, in bytes.
pub(crate) const MAX_DEVICE_NAME_BYTES: usize = 32;
/// Models that may be loaded at one time.
pub(crate) const MAX_LOADED_MODELS: usize = 16;
/// Ended jobs that are remembered for `list`, `show` and `attach`.
pub(crate) const MAX_ENDED_JOBS: usize = 1024;
/// Bytes of event logs that ended jobs may keep together; the oldest are forgotten first.
pub(crate) const MAX_ENDED_LOG_BYTES: usize = 64 << 20;
/// Sessions that are remembered.
pub(crate) const MAX_SESSIONS: usize = 4096;
/// Tokens that all sessions together have: 64 MiB of ids, and as much of their keys.
pub(crate) const MAX_SESSION_TOKENS: usize = 16 << 20;
/// Prefixes that clients have marked and that are pinned for a while; those marked longest ago go first.
pub(crate) const MAX_HELD_PREFIXES: usize = 256;
/// Those of one tenant.
pub(crate) const MAX_TENANT_PREFIXES: usize = MAX_HELD_PREFIXES / 4;
/// Bytes of KV that one transaction writes, about: they are in memory twice meanwhile.
pub(crate) const WRITE_BATCH_BYTES: u64 = 8 << 20;
/// A long request of a session has what it computed written each time this has passed.
pub(crate) const RUNNING_SAVE: Duration = Duration::from_secs(20);
/// Bytes of KV that are read at once, about: they are in memory twice until they are in their slots.
pub(crate) const READ_BATCH_BYTES: usize = 8 << 20;
/// How long the KV database may take to read so much.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the daemon's start waits for the KV database.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// When whoever has a durable job while they are being opened is told to come back.
pub(crate) const OPENING_RETRY: Duration = Duration::from_secs(1);
/// How often models are tried again that durable jobs wait for.
pub(crate) const WANTED_MODELS_INTERVAL: Duration = Duration::from_secs(30);
/// How long one transaction of it may take.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a model that is unloaded waits for what is worth keeping to be written.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a check of the KV database may take.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(600);
/// Lines of damage that a check tells.
pub(crate) const CHECK_LINES: usize = 100;
/// Waiting jobs whose KV is brought nearer before their turn: the next ones.
pub(crate) const PREFETCHED_JOBS: usize = 4;
/// Prompt tokens that a step must compute for its time to say how fast prompts are computed.
pub(crate) const MEASURED_TOKENS: usize = 32;
/// Tokens of each text round the place where a prompt and what is kept part, as they are remembered of a job.
pub(crate) const STORY_TOKENS: usize = 32;
/// Commands that wait for the job disk: one append for each running job, and what arrives. Further ones are refused.
pub(crate) const JOB_DISK_COMMANDS: usize = 1024;
const _: () =
    assert!(JOB_DISK_COMMANDS >= 2 * MAX_RUNNING_JOBS + 2 * MAX_ARRIVING, "readers find places too");
/// Commands that wait for the object disk; whoever has another one waits for a place.
pub(crate) const OBJECT_COMMANDS: usize = 256;
/// How long whoever asks the object disk waits for its answer.
pub(crate) const OBJECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Files that are uploaded at one time.
pub(crate) const MAX_UPLOADS: usize = 8;
/// Steps of a job's stored log that are read at once.
pub(crate) const READ_STEPS: usize = 16;
/// What one stored step or event may claim, in bytes as bincode counts them.
pub(crate) const MAX_STORED_VALUE_BYTES: usize = 256 << 20;
/// How often ended jobs that are too old are deleted when nothing else is written.
pub(crate) const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// Events of a durable job that are kept in memory for its readers; older ones are read from the job disk.
pub(crate) const LOG_WINDOW_EVENTS: usize = 256;
/// Bytes that these may take.
pub(crate) const LOG_WINDOW_BYTES: usize = 256 << 10;
/// How long a reader waits before it asks a job disk again that had no place for its question.
pub(crate) const LOG_READ_PAUSE: Duration = Duration::from_millis(100);
/// How often a reader asks before it gives up.
pub(crate) const LOG_READ_TRIES: usize = 50;
/// How long refused clients are told the same time to come back: to tell it anew is to look at all that waits.
pub(crate) const FORETELL_INTERVAL: Duration = Duration::from_millis(100);
/// What is remembered of a job's way, at most.
pub(crate) const MAX_MOMENTS: usize = 64;
/// How long a job's journal waits after a write that failed.
pub(crate) const JOURNAL_RETRY: Duration = Duration::from_secs(1);
/// A job fails that was there at so many deaths of the daemon in a row without a token between: it may be what kills it.
pub(crate) const MAX_IDLE_DEATHS: u32 = 10;
/// New jobs that are on their way to the disk at one time; a further one is refused.
pub(crate) const MAX_STORING: usize = JOB_DISK_COMMANDS / 2;
/// Writes of running jobs that are on their way there at one time; the others gather.
pub(crate) const MAX_JOURNAL_WRITES: usize = JOB_DISK_COMMANDS / 4;
/// How often jobs are forgotten whose records are gone.
pub(crate) const FORGET_INTERVAL: Duration = Duration::from_secs(5);
/// How long a daemon that stops waits for the job disk when nothing runs any more.
pub(crate) const JOURNAL_GRACE: Duration = Duration::from_secs(2);
/// Events a reader takes from a log at once.
pub(crate) const READ_BATCH_EVENTS: usize = 64;
/// Log probabilities that one job may report, alternatives included: about 32 MiB of its log.
pub(crate) const MAX_LOGPROBS_PER_JOB: u64 = 512 << 10;
/// Texts of one request for embeddings.
pub(crate) const MAX_EMBEDDED_TEXTS: usize = 2048;
/// How many of them are in the queue at one time.
pub(crate) const EMBEDDED_AT_ONCE: usize = 8;
/// How long the next text of a list that has begun waits for room in a queue that others have filled.
pub(crate) const EMBEDDED_ROOM_WAIT: Duration = Duration::from_secs(60);
/// How often it looks for it.
pub(crate) const EMBEDDED_ROOM_PAUSE: Duration = Duration::from_millis(50);
/// Requests with more than those at one time: the tokens of the others wait in memory.
pub(crate) const MAX_EMBEDDED_LISTS: usize = 16;
/// How many of them may be of class batch.
pub(crate) const MAX_EMBEDDED_LISTS_BATCH: usize = MAX_EMBEDDED_LISTS / 4;
/// Longest label of a job, in bytes.
pub(crate) const MAX_LABEL_BYTES: usize = zllm_wire::limits::MAX_LABEL_BYTES;
/// Longest name of a client in its hello, in bytes, as it is logged.
pub(crate) const MAX_CLIENT_NAME_BYTES: usize = 128;

/// Connections open at one time.
pub(crate) const DEFAULT_CONNECTIONS: usize = 256;
/// Frames waiting to be written to one connection; whoever adds to a full queue waits.
pub(crate) const OUTBOX_FRAMES: usize = 32;
/// How long a new connection may take to say hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that is being closed may take to read what was written for it.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often refused connections are logged, at most.
pub(crate) const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// HTTP connections of one server thread open at one time; further ones wait to be accepted.
pub(crate) const HTTP_CONNECTIONS: usize = 4096;
/// Threads of the HTTP server. They carry bytes and JSON; what takes long is done elsewhere.
pub(crate) const HTTP_WORKERS: usize = 1;
/// How long a client may take to send a request's head.
pub(crate) const HTTP_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection without a request under way for so long is closed.
pub(crate) const HTTP_IDLE: Duration = Duration::from_secs(75);
/// How often a connection is looked at.
pub(crate) const HTTP_LOOK: Duration = Duration::from_secs(5);
/// How long a client may take to send a request's body.
pub(crate) const HTTP_BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// When a key that has as many requests under way as it may is told to come back: when one ends is not known.
pub(crate) const KEY_BUSY_RETRY: Duration = Duration::from_secs(1);
/// Seconds for which browsers remember which pages may ask.
pub(crate) const CORS_MAX_AGE_S: usize = 600;
/// Bytes of a request's body.
pub(crate) const HTTP_BODY_BYTES: usize = 16 << 20;
/// Bytes of the bodies of all requests that are on their way in, or being taken apart.
pub(crate) const HTTP_BODIES_BYTES: usize = 512 << 20;
/// Bytes of a body that is taken apart on the thread that serves all connections: some milliseconds.
pub(crate) const PARSED_AT_ONCE_BYTES: usize = 256 << 10;
/// Larger ones that are taken apart elsewhere at one time.
pub(crate) const PARSING_BODIES: usize = 2;
/// A stream in which nothing happens says that it is alive, so often.
pub(crate) const STREAM_PING: Duration = Duration::from_secs(15);
/// How often a response in the background is tried again whose job cannot be read now.
pub(crate) const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Longest such time.
pub(crate) const MAX_WATCH_PAUSE: Duration = Duration::from_secs(60);
/// Bytes of what was said before a response and of what it refers to, as it is kept.
pub(crate) const MAX_HISTORY_BYTES: usize = 64 << 20;
/// Bytes of it that are read and made into prompts at one time, for all requests.
pub(crate) const HISTORIES_BYTES: usize = 4 * MAX_HISTORY_BYTES;
/// Tools of a response, those in namespaces among them. OpenAI takes 128.
pub(crate) const MAX_TOOLS: usize = 1024;
/// Requests that wait on one WebSocket while another is answered.
pub(crate) const WAITING_TURNS: usize = 4;
/// A WebSocket's client is asked whether it is still there, so often.
pub(crate) const SOCKET_PING: Duration = Duration::from_secs(15);
/// One that has left so many of these without an answer is gone.
pub(crate) const SOCKET_PINGS: u32 = 4;
/// Bytes of a model's name that are looked up; none that is there is longer, for it is a file's name.
pub(crate) const MAX_MODEL_NAME_BYTES: usize = 255;
/// Models that a message names.
pub(crate) const TOLD_MODELS: usize = 32;

/// What an idle device settles at a beat: pieces of 2 MiB, some milliseconds each. One with steps to do settles one behind a
/// step.
pub(crate) const SETTLED_PIECES: usize = 4;
/// Then it does not for so many times as long: settling takes a tenth of a device's time, whatever else it does.
pub(crate) const REST_FROM_SETTLING: u32 = 9;
/// Mailbox of each actor.
pub(crate) const MAILBOX_MESSAGES: usize = 256;
/// Fetches, puts and copies of KV blocks that the KV store may have under way on a device at one time.
pub(crate) const MAX_KV_COMMANDS: usize = 128;
/// Most sequences that can be configured, and copies of blocks under way before leases have to wait: beside them there are
/// fetches, puts and the copies of leases that are being answered.
pub(crate) const MAX_RUNNING_JOBS: usize = MAX_KV_COMMANDS - 16;
/// Commands that wait for a device's thread: one ping; a step, a load and an unload for each model; and the KV store's.
pub(crate) const DEVICE_COMMANDS: usize = 192;
const _: () =
    assert!(DEVICE_COMMANDS >= 1 + 3 * MAX_LOADED_MODELS + MAX_KV_COMMANDS, "no command is ever refused");
/// How often each actor, and the device thread through a ping, shows that it makes progress.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// How far back a device's busy share looks.
pub(crate) const BUSY_WINDOW: Duration = Duration::from_secs(10);

/// Longest path of a Unix socket: `sun_path` has 108 bytes with the closing NUL.
pub(crate) const MAX_SOCKET_PATH_BYTES: usize = 107;
/// How long after a drain's deadline the step on the device may take before the daemon ends without it.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Shortest and longest time that a refused client is told to wait.
pub(crate) const RETRY_AFTER: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

/// Bytes of a file that a client puts down: as many as OpenAI takes for a batch.
pub(crate) const HTTP_FILE_BYTES: u64 = 200 << 20;
/// How long it may take.
pub(crate) const HTTP_FILE_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of a field beside it.
pub(crate) const MAX_FILE_FIELD_BYTES: usize = 64;
/// Seconds for which a file can be kept by its client's wish, as OpenAI has them: an hour to 30 days.
pub(crate) const FILE_EXPIRY_S: std::ops::RangeInclusive<u64> = 60 * 60..=30 * 24 * 60 * 60;
/// Files on a page of a list.
pub(crate) const MAX_PAGE_ROWS: usize = 10_000;
/// Batches on a page of a list.
pub(crate) const MAX_BATCH_PAGE_ROWS: usize = 100;
/// Batches that are under way at one time; a further one is refused.
pub(crate) const MAX_BATCHES_AT_ONCE: usize = 64;
/// Those of one tenant.
pub(crate) const MAX_TENANT_BATCHES: usize = MAX_BATCHES_AT_ONCE / 4;
/// Texts that a client may hang on a batch.
pub(crate) const MAX_BATCH_METADATA: usize = 16;
/// Bytes of their names and values together.
pub(crate) const MAX_BATCH_METADATA_BYTES: usize = MAX_BATCH_METADATA * (64 + 512);
/// How long a batch may take: what has no answer by then has none.
pub(crate) const BATCH_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
/// Requests of one batch that are asked at one time; their jobs take no more of the queue.
pub(crate) const BATCH_IN_FLIGHT: usize = 16;
/// Bytes of them, and of the requests of all batches together.
pub(crate) const BATCH_IN_FLIGHT_BYTES: usize = HTTP_BODY_BYTES + (4 << 20);
pub(crate) const BATCHES_IN_FLIGHT_BYTES: usize = 4 * BATCH_IN_FLIGHT_BYTES;
/// How long a batch waits while the daemon takes no work, or cannot do it now; twice as long each time, up to the second.
pub(crate) const BATCH_RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60);
/// Results that are one object, in bytes about. The last one is written anew until it has them: small, since it is written
/// often, and not too small, since other objects of the store have to give way to them.
pub(crate) const BATCH_SEGMENT_BYTES: usize = 256 << 10;
/// How many of those are read at once.
pub(crate) const BATCH_SEGMENTS_READ: usize = 4;
/// How long results wait to be written down.
pub(crate) const BATCH_SEGMENT_TIME: Duration = Duration::from_secs(1);
/// Wrong lines of a batch that are told.
pub(crate) const MAX_BATCH_ERRORS: usize = 100;
/// Bytes of a client's name for a line of a batch.
pub(crate) const MAX_BATCH_ID_BYTES: usize = 512;
