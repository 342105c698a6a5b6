//! Every bound of the protocol, by name. Both ends enforce them; raising one is compatible, lowering is not.

/// Longest frame, in bytes after the length prefix. A prompt of a million tokens as text fits.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

/// What one decoded frame may claim, in bytes as bincode counts them: every integer counts with its full width,
/// so small numbers claim up to eight times what they take on the wire. Text and token ids claim what they take.
/// It is also the most that a string which announces more than it has can make a decoder reserve.
pub const MAX_DECODED_BYTES: usize = 2 * MAX_FRAME_BYTES;

/// Bytes of the length prefix in front of every frame (a little-endian `u32`).
pub const LENGTH_BYTES: usize = 4;

/// Longest job id, session id, batch id or tenant, in bytes.
pub const MAX_ID_BYTES: usize = 64;

/// Longest idempotency key, in bytes.
pub const MAX_KEY_BYTES: usize = 128;

/// Longest label of a job, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;

/// Longest text of a chat template that a request brings, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 128 << 10;

/// Stop strings in one request.
pub const MAX_STOP_STRINGS: usize = 16;

/// Stop tokens in one request.
pub const MAX_STOP_TOKENS: usize = 64;

/// DRY sequence breakers in one request.
pub const MAX_DRY_BREAKERS: usize = 32;

/// Answers to one prompt.
pub const MAX_CHOICES: u32 = 16;

/// Alternatives that are reported beside each token.
pub const MAX_LOGPROBS: u32 = 20;

/// Logit biases in one request.
pub const MAX_LOGIT_BIASES: usize = 1024;

/// Rows of sessions, and rows of jobs, in one listing; the daemon sends the latest ones.
pub const MAX_LIST_ROWS: usize = 4096;

/// API keys.
pub const MAX_KEYS: usize = 1024;

/// Jobs of one batch.
pub const MAX_BATCH_JOBS: usize = 50_000;

/// Jobs in one answer about a batch: with the longest labels they fit in a frame.
pub const MAX_BATCH_ROWS: usize = 16_384;

/// Moments in the timeline of a job: the first half of them, and the latest.
pub const MAX_MOMENTS: usize = 256;

/// Runs of blocks in the map of one tier; more are taken together.
pub const MAX_TIER_RUNS: usize = 4096;

/// Sessions named for one run of blocks.
pub const MAX_RUN_SESSIONS: usize = 4;

/// Sessions named as those that a session shares blocks with.
pub const MAX_SHARED_WITH: usize = 32;

/// Requests in flight on one connection; the daemon refuses further ones.
pub const MAX_IN_FLIGHT: usize = 64;

const _: () = assert!(MAX_FRAME_BYTES <= u32::MAX as usize);
