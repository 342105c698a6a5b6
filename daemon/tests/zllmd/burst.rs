//! A burst of submits against a bounded queue: as many as it holds are accepted, the rest refused at once with a time to come
//! back, memory stays where it was, and what was accepted ends, once.

use crate::common::kv::{resident_bytes, soak};
use crate::common::{Builder, Client, Daemon, greedy, now, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use zllm_wire::limits::MAX_IN_FLIGHT;
use zllm_wire::{Answer, ErrorCode, Event, JobId, Op, Submit};

const SUBMITS: usize = 10_000;
const CONNECTIONS: usize = 4;
/// Most of one connection.
const MOST_SUBMITS: usize = 10 * SUBMITS;
/// Requests of one connection at one time; as many as may be.
const IN_FLIGHT: usize = MAX_IN_FLIGHT;
const QUEUED: usize = 512;
/// What the daemon's memory may grow by: the queue, the frames on their way, the jobs' records and the store's cache.
const GROWTH_BYTES: u64 = 48 << 20;
/// How soon a refusal must be there, from the write of the request. The daemon's own promise is [`REFUSED_WITHIN`], which is
/// held to it by the long version on a machine with nothing else to do.
const REFUSED_WITHIN: Duration = Duration::from_millis(10);
const REFUSED_WITHIN_BUSY: Duration = Duration::from_millis(500);

/// What one connection's share of the burst was answered.
#[derive(Default)]
struct Answers {
    accepted: Vec<JobId>,
    /// How long each refusal took, and when to come back.
    refused: Vec<(Duration, u64)>,
    /// Refusals by their reason, without its numbers.
    reasons: BTreeMap<String, usize>,
}

impl Answers {
    /// Whether one was refused because the queue is full, not because too many came at the same time.
    fn queue_was_full(&self) -> bool {
        self.reasons.keys().any(|reason| reason.starts_with("the queue is full"))
    }
}

/// Sends `count` requests and more until the queue is full, [`IN_FLIGHT`] at a time, and reads what they are answered.
fn burst(daemon: &Daemon, connection: usize, count: usize) -> Answers {
    let mut client = daemon.connect();
    let mut answers = Answers::default();
    let mut waiting: BTreeMap<u64, Instant> = BTreeMap::new();
    let mut sent = 0;
    loop {
        let wanted = |sent: usize, answers: &Answers| sent < count || !answers.queue_was_full();
        if !wanted(sent, &answers) && waiting.is_empty() {
            return answers;
        }
        assert!(
            sent < MOST_SUBMITS,
            "connection {connection}: the queue does not fill: {:?}",
            answers.reasons
        );
        while wanted(sent, &answers) && waiting.len() < IN_FLIGHT {
            let request = greedy(&format!("Number {connection}-{sent} is"), 2);
            let start = now();
            let id = client.send(Op::Submit(Box::new(Submit { detached: true, stream: false, ..request })));
            waiting.insert(id, start);
            sent += 1;
        }
        let Some(zllm_wire::ServerFrame::Reply(reply)) = client.read() else { panic!("no reply") };
        match reply.body {
            Answer::Accepted { job, known } => {
                assert!(!known, "no request has a key");
                answers.accepted.push(job);
            }
            Answer::Error(fault) => {
                let ErrorCode::Refused { retry_after_ms } = fault.code else { panic!("{fault:?}") };
                let took = now() - waiting.remove(&reply.id).expect("it waits");
                answers.refused.push((took, retry_after_ms));
                let reason = fault.message.replace(|digit: char| digit.is_ascii_digit(), "");
                *answers.reasons.entry(reason).or_default() += 1;
            }
            Answer::Done => {
                waiting.remove(&reply.id).expect("it waits");
            }
            other => panic!("neither accepted nor refused but {other:?}"),
        }
    }
}

/// Reads a job's log to its end; it ends once, by itself.
fn ends_once(client: &mut Client, job: &JobId) {
    let id = client.send(Op::Attach { job: job.clone(), from: 0 });
    let answered = client.finish(id);
    let ends = |(_, event): &&(u64, Event)| matches!(event, Event::Finished { .. } | Event::Failed { .. });
    assert_eq!(answered.events.iter().filter(ends).count(), 1, "{job}: {answered:?}");
    assert_eq!(answered.usage.expect("it finished").generated_tokens, 2, "{job}");
}

#[test]
fn a_burst_fills_the_queue_and_the_rest_is_refused_at_once() {
    let tables = format!("[limits]\nqueued_jobs = {QUEUED}\nrunning_jobs = 32\n");
    let daemon = Builder::new().with(|settings| settings.more = tables).start();
    let mut client = daemon.connect();
    // Warm: what the daemon keeps of one job.
    client.run(greedy("Number", 2));
    assert_eq!(client.ask(Op::Drain), Answer::Done);
    let before = resident_bytes(daemon.pid());

    let start = now();
    let daemon_now = &daemon;
    let shares: Vec<Answers> = std::thread::scope(|scope| {
        let share = |connection| scope.spawn(move || burst(daemon_now, connection, SUBMITS / CONNECTIONS));
        let threads: Vec<_> = (0..CONNECTIONS).map(share).collect();
        threads.into_iter().map(|thread| thread.join().expect("a share")).collect()
    });
    let took = now() - start;
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);

    let accepted: BTreeSet<&JobId> = shares.iter().flat_map(|share| &share.accepted).collect();
    let mut refused: Vec<(Duration, u64)> = shares.iter().flat_map(|share| share.refused.clone()).collect();
    refused.sort();
    let at = |part: usize| refused[(refused.len() - 1) * part / 100].0;
    println!(
        "{} submits in {took:?}: {} accepted, {} refused in p50 {:?}, p99 {:?}, max {:?}; memory grew by {} KiB; {:?}",
        accepted.len() + refused.len(),
        accepted.len(),
        refused.len(),
        at(50),
        at(99),
        at(100),
        grown >> 10,
        shares.iter().map(|share| &share.reasons).collect::<Vec<_>>()
    );
    assert_eq!(accepted.len(), QUEUED);
    assert!(refused.len() >= SUBMITS - QUEUED);
    assert!(refused.iter().all(|(_, retry_after_ms)| *retry_after_ms > 0));
    let limit = if soak() { REFUSED_WITHIN } else { REFUSED_WITHIN_BUSY };
    assert!(at(99) < limit, "p99 of the refusals is {:?}", at(99));
    assert!(grown < GROWTH_BYTES, "{grown} bytes more");

    let status = client.status();
    assert_eq!((status.queued_jobs, status.running_jobs), (QUEUED as u32, 0), "drained: nothing starts");
    let done_before = status.jobs_done;
    assert_eq!(client.ask(Op::Resume), Answer::Done);
    for job in accepted {
        ends_once(&mut client, job);
    }
    wait_for("the last job's end", || (client.status().queued_jobs == 0).then_some(()));
    assert_eq!(client.status().jobs_done - done_before, QUEUED as u64, "each ended once");
}
