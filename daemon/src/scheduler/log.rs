//! A job's event log: one writer, any number of readers, each at its own pace and from any offset.
//!
//! Readers pull: a slow one slows itself alone, and one that went away costs nothing. The log is bounded by the job:
//! it has at most one event a token, and a job's tokens are reserved at admission.

use crate::limits::READ_BATCH_EVENTS;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use zllm_wire::{Event, TokenLogprob, TopLogprob};

/// The log. The scheduler appends, connections read.
#[derive(Debug)]
pub(crate) struct JobLog {
    events: Mutex<Vec<Event>>,
    /// Events in the log, and whether the last one is terminal.
    length: watch::Sender<(usize, bool)>,
}

impl JobLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { events: Mutex::default(), length: watch::Sender::new((0, false)) })
    }

    /// Appends an event.
    ///
    /// # Panics
    /// After a terminal event.
    pub(crate) fn append(&self, event: Event) {
        let terminal = is_terminal(&event);
        let mut events = self.lock();
        assert!(!self.length.borrow().1, "nothing follows a job's terminal event, least of all {event:?}");
        events.push(event);
        self.length.send_replace((events.len(), terminal));
    }

    /// Events so far.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The text of one of the answers so far.
    pub(crate) fn text(&self, choice: u32) -> String {
        self.lock()
            .iter()
            .filter_map(|event| match event {
                Event::Text { choice: of, text, .. } if *of == choice => Some(&**text),
                _ => None,
            })
            .collect()
    }

    /// Bytes that the log keeps, about.
    pub(crate) fn bytes(&self) -> usize {
        let events = self.lock();
        let inside = |event: &Event| match event {
            Event::Text { text, logprobs, .. } => {
                text.len() + logprobs.iter().map(logprob_bytes).sum::<usize>()
            }
            _ => 0,
        };
        events.iter().map(|event| inside(event) + size_of::<Event>()).sum()
    }

    /// A reader from event number `from` on.
    pub(crate) fn reader(self: &Arc<Self>, from: u64) -> LogReader {
        LogReader { next: from, length: self.length.subscribe(), log: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().expect("nobody panics while holding a log")
    }
}

fn logprob_bytes(logprob: &TokenLogprob) -> usize {
    let top = logprob.top.iter().map(|other| size_of::<TopLogprob>() + other.bytes.len());
    size_of::<TokenLogprob>() + logprob.bytes.len() + top.sum::<usize>()
}

/// Whether no event can follow.
pub(crate) fn is_terminal(event: &Event) -> bool {
    matches!(event, Event::Finished { .. } | Event::Failed { .. })
}

/// One reader's place in a log.
#[derive(Debug)]
pub(crate) struct LogReader {
    log: Arc<JobLog>,
    next: u64,
    length: watch::Receiver<(usize, bool)>,
}

impl LogReader {
    /// The next events with their offsets, at most [`READ_BATCH_EVENTS`]; waits for one; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Vec<(u64, Event)>> {
        loop {
            // Marked as seen before the log is read: what is appended in between wakes us at once.
            let (length, ended) = *self.length.borrow_and_update();
            if self.next < length as u64 {
                let start = self.next as usize;
                let end = length.min(start + READ_BATCH_EVENTS);
                let events = self.log.lock()[start..end].to_vec();
                self.next = end as u64;
                return Some((start as u64..).zip(events).collect());
            }
            if ended || self.length.changed().await.is_err() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Event {
        Event::Text { choice: 0, text: text.into(), tokens: 1, logprobs: vec![] }
    }

    fn failed() -> Event {
        Event::Failed { message: "over".into() }
    }

    async fn read_all(mut reader: LogReader) -> Vec<(u64, Event)> {
        let mut all = Vec::new();
        while let Some(batch) = reader.next().await {
            assert!(!batch.is_empty() && batch.len() <= READ_BATCH_EVENTS);
            all.extend(batch);
        }
        all
    }

    #[actix::test]
    async fn readers_from_any_offset_at_any_time_see_the_same_log() {
        let log = JobLog::new();
        log.append(text("a"));
        let early = actix::spawn(read_all(log.reader(0)));
        let past = actix::spawn(read_all(log.reader(200)));
        for _ in 0..150 {
            log.append(text("b"));
            tokio::task::yield_now().await;
        }
        let middle = actix::spawn(read_all(log.reader(100)));
        log.append(failed());
        let late = read_all(log.reader(0)).await;

        assert_eq!(late.len(), 152);
        assert!(late.iter().enumerate().all(|(at, (offset, _))| at as u64 == *offset));
        assert_eq!(early.await.expect("no panic"), late);
        assert_eq!(middle.await.expect("no panic"), late[100..]);
        assert_eq!(past.await.expect("no panic"), [], "an offset behind the end has nothing to read");
        assert_eq!((log.text(0).len(), log.text(1).len()), (151, 0));
    }

    #[test]
    #[should_panic(expected = "nothing follows")]
    fn a_second_terminal_event_is_a_defect() {
        let log = JobLog::new();
        log.append(failed());
        log.append(failed());
    }
}
