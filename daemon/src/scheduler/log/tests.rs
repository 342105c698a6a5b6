//! Readers at all speeds, in memory and over a job disk on real files.

use super::*;
use crate::clock::Clock;
use crate::pulse::Pulses;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tempfile::TempDir;
use zllm_state::Retention;

const JOB: u64 = 7;

fn text(text: &str) -> Event {
    Event::Text { choice: 0, text: text.into(), tokens: 1, logprobs: vec![] }
}

fn failed() -> Event {
    Event::Failed { message: "over".into() }
}

async fn read_all(mut reader: LogReader, pause: Duration) -> Vec<(u64, Event)> {
    let mut all = Vec::new();
    while let Some(batch) = reader.next().await.expect("a sound disk") {
        assert!(!batch.is_empty() && batch.len() <= READ_BATCH_EVENTS);
        all.extend(batch);
        tokio::time::sleep(pause).await;
    }
    all
}

/// A job disk in a folder of its own.
async fn disk() -> (JobDisk, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let forever = Retention { max_age_ms: u64::MAX, max_jobs: u64::MAX, max_bytes: u64::MAX };
    let (pulses, _) = Pulses::new(1);
    let (disk, opened) =
        JobDisk::spawn(folder.path().into(), forever, Clock::start(), &pulses).expect("a thread");
    opened.await.expect("alive").expect("a sound folder");
    (disk, folder)
}

/// Appends to the disk and, when that is done, to the log; as the scheduler does.
async fn store(disk: &JobDisk, log: &JobLog, events: Vec<Event>) {
    let numbered = (log.len()..).zip(events.iter().cloned()).collect();
    disk.append(JOB, vec![], numbered).await.expect("alive").expect("a sound disk");
    log.append_all(events);
}

fn assert_whole(read: &[(u64, Event)], length: u64, from: u64) {
    assert_eq!(read.len() as u64, length - from);
    for (at, (offset, event)) in (from..).zip(read) {
        assert_eq!(at, *offset);
        let expected = if at + 1 == length { failed() } else { text(&at.to_string()) };
        assert_eq!(*event, expected, "event {at}");
    }
}

#[actix::test]
async fn readers_from_any_offset_at_any_time_see_the_same_log() {
    let log = JobLog::in_memory();
    log.append(text("0"));
    let now = Duration::ZERO;
    let early = actix::spawn(read_all(log.reader(0), now));
    let past = actix::spawn(read_all(log.reader(200), now));
    for at in 1..151 {
        log.append(text(&at.to_string()));
        tokio::task::yield_now().await;
    }
    let middle = actix::spawn(read_all(log.reader(100), now));
    log.append(failed());
    let late = read_all(log.reader(0), now).await;

    assert_whole(&late, 152, 0);
    assert_eq!(early.await.expect("no panic"), late);
    assert_eq!(middle.await.expect("no panic"), late[100..]);
    assert_eq!(past.await.expect("no panic"), [], "an offset behind the end has nothing to read");
    assert_eq!(log.texts(2).await, Ok(vec![log.text(0), String::new()]));
    assert!(log.text(0).starts_with("0123") && log.text(0).ends_with("149150"));
    let kept = log.bytes();
    assert!(kept >= 152 * size_of::<Event>() + 300, "all of it is in memory: {kept}");
}

#[actix::test]
async fn of_a_stored_log_readers_at_all_speeds_see_the_same() {
    const EVENTS: u64 = 3000;
    let (disk, _folder) = disk().await;
    let log = JobLog::stored(JOB, disk.clone(), 0);
    let mut readers = Vec::new();
    let read = |from, pause| (from, actix::spawn(read_all(log.reader(from), Duration::from_millis(pause))));
    for (from, pause) in [(0, 0), (0, 1), (0, 20), (700, 3), (EVENTS - 1, 0), (EVENTS, 0), (EVENTS + 9, 0)] {
        readers.push(read(from, pause));
    }
    let mut batch = 0;
    while log.len() < EVENTS {
        batch = batch * 5 % 61 + 1;
        let end = EVENTS.min(log.len() + batch);
        let event = |at: u64| if at + 1 == EVENTS { failed() } else { text(&at.to_string()) };
        store(&disk, &log, (log.len()..end).map(event).collect()).await;
        assert!(log.window().events.len() <= LOG_WINDOW_EVENTS && log.bytes() <= LOG_WINDOW_BYTES);
        if log.len() == end && end.is_multiple_of(7) {
            readers.push(read(end / 2, 0));
        }
    }
    assert!(readers.len() > 10);
    readers.extend([read(0, 0), read(EVENTS - 20, 0)]);
    for (from, reader) in readers {
        assert_whole(&reader.await.expect("no panic"), EVENTS, from.min(EVENTS));
    }
    // Nothing has to be in memory.
    log.leave_to_disk();
    assert_eq!(log.bytes(), 0);
    assert_whole(&read_all(log.reader(0), Duration::ZERO).await, EVENTS, 0);
    let again = JobLog::ended(JOB, disk, EVENTS);
    assert_eq!((again.bytes(), again.len()), (0, EVENTS));
    assert_whole(&read_all(again.reader(5), Duration::ZERO).await, EVENTS, 5);
    let all: String = (0..EVENTS - 1).map(|at| at.to_string()).collect();
    assert_eq!(again.texts(1).await, Ok(vec![all]));
}

#[actix::test]
async fn a_log_that_was_stored_before_goes_on_at_its_offset() {
    let (disk, _folder) = disk().await;
    let first = JobLog::stored(JOB, disk.clone(), 0);
    store(&disk, &first, (0..100).map(|at| text(&at.to_string())).collect()).await;
    let second = JobLog::stored(JOB, disk.clone(), 100);
    let reader = actix::spawn(read_all(second.reader(30), Duration::ZERO));
    store(&disk, &second, vec![text("100"), failed()]).await;
    assert_whole(&reader.await.expect("no panic"), 102, 30);
}

#[test]
fn the_window_is_bounded_in_bytes_too() {
    let (commands, _queue) = JobDisk::unattended();
    let log = JobLog::stored(JOB, commands, 0);
    let big = text(&"x".repeat(LOG_WINDOW_BYTES / 3));
    for _ in 0..10 {
        log.append(big.clone());
        assert!(log.bytes() <= LOG_WINDOW_BYTES);
    }
    assert_eq!((log.window().events.len(), log.len()), (2, 10));
    log.append(text(&"x".repeat(LOG_WINDOW_BYTES)));
    assert_eq!((log.bytes(), log.len()), (0, 11), "an event that is too large alone is on disk alone");
}

/// A disk that answers nobody holds up only who needs it.
#[actix::test]
async fn neither_a_slow_reader_nor_a_slow_disk_stops_the_writer() {
    let (commands, queue) = JobDisk::unattended();
    let log = JobLog::stored(JOB, commands, 0);
    let mut behind = log.reader(0);
    for at in 0..5000 {
        log.append(text(&at.to_string()));
    }
    let waiting = tokio::time::timeout(Duration::from_millis(20), behind.next());
    assert!(waiting.await.is_err(), "what it wants is on a disk that does not answer");
    let mut close = log.reader(4990);
    let read = close.next().await.expect("no disk is needed").expect("there is something");
    assert_eq!((read.len(), &read[0]), (10, &(4990, text("4990"))));
    drop(queue);
    let error = behind.next().await.expect_err("the disk is gone");
    assert!(error.contains("the job disk's thread has ended"), "{error}");
}

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_that_waits_is_woken_once_for_a_batch() {
    let log = JobLog::in_memory();
    let mut reader = log.reader(0);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    let mut next = pin!(reader.next());
    assert!(next.as_mut().poll(&mut context).is_pending());
    log.append_all((0..10).map(|at| text(&at.to_string())));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(Ok(Some(events))) = next.as_mut().poll(&mut context) else { panic!("there are events") };
    assert_eq!(events.len(), 10);
}

#[test]
#[should_panic(expected = "nothing follows")]
fn a_second_terminal_event_is_a_defect() {
    let log = JobLog::in_memory();
    log.append(failed());
    log.append(failed());
}
