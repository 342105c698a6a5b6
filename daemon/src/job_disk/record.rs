//! What the daemon writes of a job into the token log and as its result, byte for byte.
//!
//! A step and an event are a version byte and the value in bincode's standard configuration (little-endian, integers of
//! variable length). A result is all events of a job, such that any of them is found without reading those before it:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version |
//! | 4 | `count`, a little-endian `u32` |
//! | 4 * `count` | where each event ends, counted from the end of this table; little-endian `u32` |
//! | the rest | the events, each as above |
//!
//! Checksums are the store's. A change of [`Event`], which is also the protocol's, needs another [`VERSION`]; the tests hold
//! the bytes.

use crate::limits::MAX_STORED_VALUE_BYTES;
use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zllm_wire::{ChoiceEnd, Event, GenerationParams, TokenLogprob};

/// First byte of whatever this version writes.
const VERSION: u8 = 1;

const CONFIG: Configuration<LittleEndian, Varint, Limit<MAX_STORED_VALUE_BYTES>> =
    bincode::config::standard().with_limit::<MAX_STORED_VALUE_BYTES>();

/// A drawn token, with all that resuming its answer takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TokenEntry {
    /// Which of the job's answers it belongs to.
    pub(crate) choice: u32,
    pub(crate) token: u32,
    /// The sampler's state after it: mirostat's bound, in bits.
    pub(crate) state: f32,
    /// Text of its answer that is held back after it, as it may begin a stop string.
    pub(crate) held: String,
    /// Whether an event in the log, or in the same append, has counted it.
    pub(crate) sent: bool,
    /// Its log probability, while no event has told it.
    pub(crate) logprob: Option<TokenLogprob>,
    /// How its answer ends, if it ends with it.
    pub(crate) end: Option<ChoiceEnd>,
}

/// What listings tell of a job beside what the store knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) prompt_tokens: u32,
    /// Tokens that it had when a death of the daemon was noticed last.
    pub(crate) tokens_before: u64,
    /// Deaths of the daemon while it ran, one after the other, between which it got no token.
    pub(crate) idle_deaths: u32,
    /// Set when it has ended.
    pub(crate) ending: Option<Ending>,
}

/// How an ended job's log ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// How many events it has.
    pub(crate) events: u64,
    /// The last of them.
    pub(crate) last: Event,
}

impl Summary {
    /// The bytes of a record's summary.
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// # Errors
    /// Bytes that are no summary.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

/// The bytes of a record's request.
pub(crate) fn encode_request(params: &GenerationParams) -> Vec<u8> {
    encode(params)
}

/// # Errors
/// Bytes that are no request.
pub(crate) fn decode_request(bytes: &[u8]) -> Result<GenerationParams, String> {
    decode(bytes)
}

/// What one append brought to one job: an entry of the token log, there as a whole or not at all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Step {
    /// Tokens in the steps before it.
    pub(super) tokens_before: u64,
    /// Events in the steps before it: the offset of its first one.
    pub(super) events_before: u64,
    pub(super) tokens: Vec<TokenEntry>,
    pub(super) events: Vec<Event>,
}

impl Step {
    /// Tokens up to its end.
    pub(super) fn tokens_after(&self) -> u64 {
        self.tokens_before + self.tokens.len() as u64
    }

    /// Events up to its end.
    pub(super) fn events_after(&self) -> u64 {
        self.events_before + self.events.len() as u64
    }
}

/// The bytes of a step or an event.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    append(value, &mut bytes);
    bytes
}

fn append<T: Serialize>(value: &T, bytes: &mut Vec<u8>) {
    let written = bincode::serde::encode_into_std_write(value, bytes, CONFIG);
    written.expect("steps and events are encoded into memory, and hold no type that bincode refuses");
}

/// The value of [`encode`]'s bytes.
///
/// # Errors
/// Another version, or no such value.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (&version, payload) = bytes.split_first().ok_or("an empty record")?;
    check_version(version)?;
    let (value, used) =
        bincode::serde::decode_from_slice(payload, CONFIG).map_err(|error| error.to_string())?;
    if used < payload.len() {
        return Err(format!("{} bytes left over behind a record", payload.len() - used));
    }
    Ok(value)
}

fn check_version(version: u8) -> Result<(), String> {
    if version == VERSION {
        return Ok(());
    }
    Err(format!("a record of version {version}, and this zllmd reads version {VERSION}"))
}

/// The bytes of a job's result.
///
/// # Errors
/// More than 4 GiB of events.
pub(super) fn encode_result(events: &[Event]) -> Result<Vec<u8>, String> {
    let (mut ends, mut bodies) = (Vec::new(), Vec::new());
    for event in events {
        bodies.push(VERSION);
        append(event, &mut bodies);
        let end = u32::try_from(bodies.len()).map_err(|_| "the events of a job take more than 4 GiB")?;
        ends.extend(end.to_le_bytes());
    }
    let count = u32::try_from(events.len()).map_err(|_| "a job has more than 2^32 events")?;
    Ok([&[VERSION], &count.to_le_bytes()[..], &ends, &bodies].concat())
}

/// A job's result, of which any event can be read.
#[derive(Debug)]
pub(super) struct StoredResult {
    bytes: Vec<u8>,
    /// How many events it has.
    count: usize,
}

impl StoredResult {
    /// Bytes before the table.
    const HEADER_BYTES: usize = 1 + 4;

    /// # Errors
    /// Bytes that are no result.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, String> {
        let (header, _) =
            bytes.split_first_chunk::<{ Self::HEADER_BYTES }>().ok_or("a result without a header")?;
        let [version, count @ ..] = *header;
        check_version(version)?;
        let count = u32::from_le_bytes(count) as usize;
        if bytes.len() < Self::HEADER_BYTES + 4 * count {
            return Err(format!("a result of {} bytes is too short for {count} events", bytes.len()));
        }
        Ok(Self { bytes, count })
    }

    /// How many events it has.
    pub(super) fn count(&self) -> u64 {
        self.count as u64
    }

    /// At most `max` events from number `from` on.
    ///
    /// # Errors
    /// Bytes that are no events.
    pub(super) fn events(&self, from: u64, max: usize) -> Result<Vec<Event>, String> {
        let from = from.min(self.count()) as usize;
        let bodies = &self.bytes[Self::HEADER_BYTES + 4 * self.count..];
        let event = |at: usize| {
            let start = if at == 0 { 0 } else { self.end(at - 1) };
            let body =
                bodies.get(start..self.end(at)).ok_or(format!("event {at} is outside of its result"))?;
            decode(body)
        };
        (from..self.count.min(from.saturating_add(max))).map(event).collect()
    }

    fn end(&self, at: usize) -> usize {
        let (table, _) = self.bytes[Self::HEADER_BYTES..].as_chunks::<4>();
        u32::from_le_bytes(table[at]) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zllm_wire::{FinishReason, StopCause, TokenTiers, TopLogprob, Usage};

    fn logprob() -> TokenLogprob {
        let top = vec![TopLogprob { token: 300, bytes: b"b".to_vec(), logprob: -1.0 }];
        TokenLogprob { token: 7, bytes: b"a".to_vec(), logprob: -0.5, offset: 2, top }
    }

    fn entry() -> TokenEntry {
        let (held, logprob) = ("</".to_owned(), Some(logprob()));
        TokenEntry { choice: 1, token: 70_000, state: 4.5, held, sent: false, logprob, end: None }
    }

    fn events() -> Vec<Event> {
        let by_tier = TokenTiers { device: 1, ram: 2, ssd: 300 };
        let stop = Some(StopCause::Text { text: "end".into() });
        vec![
            Event::Queued { position: 3 },
            Event::Started { cached_tokens: 303, cached_by_tier: by_tier, prompt_tokens: 70_000 },
            Event::Text { choice: 1, text: "é".into(), tokens: 2, logprobs: vec![logprob()] },
            Event::Finished {
                reason: FinishReason::Stop,
                choices: vec![ChoiceEnd { reason: FinishReason::Stop, stop }],
                usage: Usage { generated_tokens: 9, queue_ms: 1.5, ..Usage::default() },
            },
            Event::Failed { message: "why".into() },
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What is on disks already reads as it was written: a change here needs another version.
    #[test]
    fn the_bytes_stay_as_they_are() {
        let golden = [
            "010003",
            "0101fb2f010102fb2c01fc70110100",
            "01020102c3a90201070161000000bf0201fb2c01016200\
             0080bf",
            "0103000100010203656e64000000000009000000000000f83f000000000000000000000000000000000000000000000000",
            "010403776879",
        ];
        for (event, golden) in events().iter().zip(golden) {
            assert_eq!(hex(&encode(event)), golden, "{event:?}");
        }
        let step = Step {
            tokens_before: 3,
            events_before: 300,
            tokens: vec![entry()],
            events: events()[..1].to_vec(),
        };
        let golden = "0103fb2c010101fc7011010000009040023c2f0001070161000000bf0201fb2c010162000080bf00010003";
        assert_eq!(hex(&encode(&step)), golden);
        assert_eq!(hex(&encode_result(&events()[..1]).expect("short")), "010100000003000000010003");
    }

    #[test]
    fn what_is_written_is_read() {
        let step =
            Step { tokens_before: 1 << 40, events_before: 0, tokens: vec![entry(); 3], events: events() };
        assert_eq!(decode::<Step>(&encode(&step)).as_ref(), Ok(&step));
        assert_eq!((step.tokens_after(), step.events_after()), ((1 << 40) + 3, 5));
        let result = StoredResult::new(encode_result(&events()).expect("short")).expect("a result");
        assert_eq!(result.count(), 5);
        for from in 0..7 {
            for max in 0..7 {
                let expected: Vec<Event> = events().into_iter().skip(from).take(max).collect();
                assert_eq!(result.events(from as u64, max), Ok(expected), "{max} from {from}");
            }
        }
        assert_eq!(result.events(u64::MAX, usize::MAX), Ok(vec![]));
        assert_eq!(StoredResult::new(encode_result(&[]).expect("short")).expect("a result").count(), 0);
    }

    #[test]
    fn other_bytes_are_refused_and_never_a_panic() {
        let whole = encode(&entry());
        assert_eq!(decode::<TokenEntry>(&[]), Err("an empty record".to_owned()));
        let later = [&[VERSION + 1], &whole[1..]].concat();
        assert!(decode::<TokenEntry>(&later).is_err_and(|why| why.starts_with("a record of version 2")));
        let longer = [&whole[..], &[0]].concat();
        assert!(decode::<TokenEntry>(&longer).is_err_and(|why| why.starts_with("1 bytes left over")));
        for cut in 0..whole.len() {
            assert!(decode::<TokenEntry>(&whole[..cut]).is_err());
        }
        let result = encode_result(&events()).expect("short");
        for at in 0..result.len() {
            let mut damaged = result.clone();
            damaged[at] ^= 0xff;
            let read = StoredResult::new(damaged).and_then(|result| result.events(0, 10));
            assert_ne!(read, Ok(events()), "byte {at}");
            let read = StoredResult::new(result[..at].to_vec()).and_then(|result| result.events(0, 10));
            assert!(read.is_err(), "cut at {at}");
        }
    }
}
