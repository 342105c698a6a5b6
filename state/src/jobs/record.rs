//! The bytes of a job's records: its head, its body, its result. FORMATS.md has the layouts as tables.

use super::job::{Head, JobClass, JobRecord, JobState};
use crate::database::{Reader, Writer};

/// First byte of each record that this version writes.
pub(super) const VERSION: u8 = 1;

/// Bytes of an index's key: a hash, so that it has one width and any bytes of it are a key.
pub(super) type NameKey = [u8; 32];

/// Which of a job's records it is; hashed into the checksum, so that none passes for another.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Head = 0,
    Body = 1,
    Result = 2,
}

/// What a record's checksum is of beside its bytes.
fn seal_key(kind: Kind, number: u64) -> [u8; 9] {
    let mut key = [kind as u8; 9];
    key[1..].copy_from_slice(&number.to_le_bytes());
    key
}

/// Key of an idempotency key in its table.
pub(super) fn key_of_key(tenant: &str, key: &str) -> NameKey {
    name_key(b"zllm job key 1", tenant, key)
}

/// Key of a batch in its table.
pub(super) fn key_of_batch(tenant: &str, batch: &str) -> NameKey {
    name_key(b"zllm job batch 1", tenant, batch)
}

fn name_key(domain: &[u8], tenant: &str, name: &str) -> NameKey {
    let mut hash = blake3::Hasher::new();
    hash.update(domain).update(&(tenant.len() as u64).to_le_bytes());
    hash.update(tenant.as_bytes()).update(name.as_bytes());
    *hash.finalize().as_bytes()
}

pub(super) fn encode_head(head: &Head) -> Vec<u8> {
    assert_eq!(what_contradicts(head), None, "job {}", head.record.number);
    let (job, mut out) = (&head.record, Writer::new(VERSION));
    out.u8(job.state as u8);
    out.u8(job.class as u8);
    out.u8(job.held.into());
    out.u32(job.attempts);
    out.u64(job.submitted_ms);
    for time in [job.started_ms, job.ended_ms, job.deadline_ms, job.start_by_ms] {
        out.option_u64(time);
    }
    out.u64(head.body_bytes);
    out.option_u64(head.result_bytes);
    out.bytes(&job.fingerprint);
    out.string(&job.tenant);
    out.string(&job.model);
    for name in [&job.session, &job.label, &job.batch, &job.key] {
        out.option_string(name.as_deref());
    }
    out.bytes(&job.summary);
    out.seal(&seal_key(Kind::Head, job.number))
}

/// The head that these bytes are under this number, or what is wrong with them.
pub(super) fn decode_head(number: u64, bytes: &[u8]) -> Result<Head, &'static str> {
    let mut input = Reader::open(VERSION, &seal_key(Kind::Head, number), bytes)?;
    let [state, class] = input.array()?;
    let state = *JobState::ALL.get(usize::from(state)).ok_or("a state that this zllm does not know")?;
    let class = *JobClass::ALL.get(usize::from(class)).ok_or("a class that this zllm does not know")?;
    let (held, attempts, submitted_ms) = (input.flag()?, input.u32()?, input.u64()?);
    let (started_ms, ended_ms) = (input.option_u64()?, input.option_u64()?);
    let (deadline_ms, start_by_ms) = (input.option_u64()?, input.option_u64()?);
    let (body_bytes, result_bytes) = (input.u64()?, input.option_u64()?);
    let record = JobRecord {
        number,
        class,
        held,
        state,
        attempts,
        submitted_ms,
        started_ms,
        ended_ms,
        deadline_ms,
        start_by_ms,
        fingerprint: input.array()?,
        tenant: input.string()?,
        model: input.string()?,
        session: input.option_string()?,
        label: input.option_string()?,
        batch: input.option_string()?,
        key: input.option_string()?,
        summary: input.rest().to_vec(),
        prompt: Vec::new(),
        request: Vec::new(),
    };
    let head = Head { record, body_bytes, result_bytes };
    match what_contradicts(&head) {
        None => Ok(head),
        Some(what) => Err(what),
    }
}

/// What in a head cannot be.
fn what_contradicts(head: &Head) -> Option<&'static str> {
    let job = &head.record;
    if job.state.is_terminal() != job.ended_ms.is_some() {
        Some("a state and a time of its end that contradict each other")
    } else if head.result_bytes.is_some() && !job.state.is_terminal() {
        Some("a result before its end")
    } else if job.state == JobState::Running && job.started_ms.is_none() {
        Some("no time of its start, and runs")
    } else {
        None
    }
}

pub(super) fn encode_body(job: &JobRecord) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.u32s(&job.prompt);
    out.bytes(&job.request);
    out.seal(&seal_key(Kind::Body, job.number))
}

/// Prompt and request of the job of this head, or what is wrong with these bytes.
pub(super) fn decode_body(head: &Head, bytes: &[u8]) -> Result<(Vec<u32>, Vec<u8>), &'static str> {
    let mut input = Reader::open(VERSION, &seal_key(Kind::Body, head.record.number), bytes)?;
    let (prompt, request) = (input.u32s()?, input.rest().to_vec());
    match prompt.len() as u64 * 4 + request.len() as u64 == head.body_bytes {
        true => Ok((prompt, request)),
        false => Err("another length than its head says"),
    }
}

pub(super) fn encode_result(number: u64, result: &[u8]) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.bytes(result);
    out.seal(&seal_key(Kind::Result, number))
}

/// The result of the job of this number, or what is wrong with these bytes.
pub(super) fn decode_result(number: u64, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    Ok(Reader::open(VERSION, &seal_key(Kind::Result, number), bytes)?.rest().to_vec())
}

#[cfg(test)]
mod tests;
