//! A job's event log: one writer, any number of readers, each at its own pace and from any offset.
//!
//! Readers pull: a slow one slows itself alone, and one that went away costs nothing. The log of a job in memory is kept
//! whole; it is bounded by the job: it has at most one event a token, and a job's tokens are reserved at admission. Of a
//! durable job's log only a window of the latest events is in memory. A reader that is behind it reads from the job disk.
//!
//! Invariant: a durable job's event is appended here when it is on disk, so what a reader has seen is never unsaid; only
//! while the disk fails it comes before. Whatever has left the window is found on disk.

use crate::job_disk::JobDisk;
use crate::limits::{LOG_WINDOW_BYTES, LOG_WINDOW_EVENTS, READ_BATCH_EVENTS};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use zllm_wire::{Event, TokenLogprob, TopLogprob};

/// The log. The scheduler appends, connections read.
#[derive(Debug)]
pub(crate) struct JobLog {
    window: Mutex<Window>,
    /// Events in the log, and whether the last one is terminal.
    length: watch::Sender<(u64, bool)>,
    /// Where all events are, if the job is durable.
    stored: Option<Stored>,
}

/// The latest events.
#[derive(Debug, Default)]
struct Window {
    /// Offset of the first one.
    start: u64,
    events: VecDeque<Event>,
    /// About what they take.
    bytes: usize,
    /// Offset behind the last event that is on disk; what is not stays here.
    stored: u64,
}

#[derive(Debug)]
struct Stored {
    job: u64,
    disk: JobDisk,
}

impl JobLog {
    /// The log of a job that lives in memory.
    pub(crate) fn in_memory() -> Arc<Self> {
        Self::new(0, false, None)
    }

    fn new(start: u64, ended: bool, stored: Option<Stored>) -> Arc<Self> {
        let window = Mutex::new(Window { start, stored: start, ..Window::default() });
        Arc::new(Self { window, length: watch::Sender::new((start, ended)), stored })
    }

    /// Appends an event.
    ///
    /// # Panics
    /// After a terminal event.
    #[cfg(test)]
    pub(crate) fn append(&self, event: Event) {
        self.append_all([event]);
    }

    /// Appends events, of a durable job that are on disk; readers that wait are woken once for all of them.
    ///
    /// # Panics
    /// After a terminal event.
    pub(crate) fn append_all(&self, events: impl IntoIterator<Item = Event>) {
        self.append_stored(events, u64::MAX);
    }

    /// Appends events of a durable job, of which the first `stored` are on disk now.
    ///
    /// # Panics
    /// After a terminal event.
    pub(crate) fn append_stored(&self, events: impl IntoIterator<Item = Event>, stored: u64) {
        let mut window = self.window();
        window.stored = stored;
        let (_, mut ended) = *self.length.borrow();
        for event in events {
            assert!(!ended, "nothing follows a job's terminal event, least of all {event:?}");
            ended = is_terminal(&event);
            window.push(event);
        }
        let length = window.end();
        if self.stored.is_some() {
            window.shrink_to(LOG_WINDOW_EVENTS, LOG_WINDOW_BYTES);
        }
        // Readers wake after this: they find the window free.
        drop(window);
        self.length.send_replace((length, ended));
    }

    /// Events so far.
    pub(crate) fn len(&self) -> u64 {
        self.length.borrow().0
    }

    /// The text of one of the answers so far, of a job that lives in memory; that of a durable one is read
    /// ([`JobLog::texts`]).
    ///
    /// # Panics
    /// When the job is durable.
    #[cfg(test)]
    pub(crate) fn text(&self, choice: u32) -> String {
        assert!(self.stored.is_none(), "the window of a durable job has only a part of the text");
        let window = self.window();
        window.events.iter().filter_map(|event| text_of(event, choice)).collect()
    }

    /// Bytes that it keeps in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.window().bytes
    }

    /// A reader from event number `from` on.
    pub(crate) fn reader(self: &Arc<Self>, from: u64) -> LogReader {
        LogReader { next: from, length: self.length.subscribe(), log: self.clone() }
    }

    /// At most [`READ_BATCH_EVENTS`] events from number `from` on, which the log has.
    async fn read(&self, from: u64) -> Result<Vec<Event>, String> {
        if let Some(events) = self.window().read(from) {
            return Ok(events);
        }
        let Stored { job, disk } =
            self.stored.as_ref().expect("all events of a job in memory are in its window");
        let events = disk.read_log(*job, from, READ_BATCH_EVENTS).await?;
        if events.is_empty() {
            return Err(format!("event {from} of job j-{job:016x} is not stored any more"));
        }
        Ok(events)
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().expect("nobody panics while holding a log")
    }

    /// The log of a durable job, of which `events` events are stored already.
    pub(crate) fn stored(job: u64, disk: JobDisk, events: u64) -> Arc<Self> {
        Self::new(events, false, Some(Stored { job, disk }))
    }

    /// The log of a durable job that has ended, with so many events; none of them is in memory.
    pub(crate) fn ended(job: u64, disk: JobDisk, events: u64) -> Arc<Self> {
        Self::new(events, true, Some(Stored { job, disk }))
    }

    /// Lets go of what is in memory: readers find it on disk.
    ///
    /// # Panics
    /// When the job lives in memory.
    pub(crate) fn leave_to_disk(&self) {
        assert!(self.stored.is_some(), "the log of a job in memory is nowhere else");
        self.window().shrink_to(0, 0);
    }

    /// The texts of the first `choices` answers so far.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn texts(self: &Arc<Self>, choices: u32) -> Result<Vec<String>, String> {
        let mut texts = vec![String::new(); choices as usize];
        let (mut reader, end) = (self.reader(0), self.len());
        while reader.next < end
            && let Some(events) = reader.next().await?
        {
            for (_, event) in events.iter().take_while(|(offset, _)| *offset < end) {
                for (choice, text) in texts.iter_mut().enumerate() {
                    text.extend(text_of(event, choice as u32));
                }
            }
        }
        Ok(texts)
    }
}

impl Window {
    fn push(&mut self, event: Event) {
        self.bytes += event_bytes(&event);
        self.events.push_back(event);
    }

    /// Drops the oldest events until no more than so many and so much are left.
    fn shrink_to(&mut self, events: usize, bytes: usize) {
        while (self.events.len() > events || self.bytes > bytes) && self.start < self.stored {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= event_bytes(&oldest);
            self.start += 1;
        }
    }

    /// Offset behind the last event.
    fn end(&self) -> u64 {
        self.start + self.events.len() as u64
    }

    /// A batch of events from number `from` on; `None` when it has left the window.
    fn read(&self, from: u64) -> Option<Vec<Event>> {
        let skipped = from.checked_sub(self.start)? as usize;
        let events: Vec<Event> = self.events.iter().skip(skipped).take(READ_BATCH_EVENTS).cloned().collect();
        (!events.is_empty()).then_some(events)
    }
}

fn text_of(event: &Event, choice: u32) -> Option<&str> {
    match event {
        Event::Text { choice: of, text, .. } if *of == choice => Some(text),
        _ => None,
    }
}

fn event_bytes(event: &Event) -> usize {
    let inside = match event {
        Event::Text { text, logprobs, .. } => text.len() + logprobs.iter().map(logprob_bytes).sum::<usize>(),
        Event::Finished { choices, .. } => size_of_val(&choices[..]),
        Event::Failed { message } => message.len(),
        Event::Queued { .. } | Event::Started { .. } => 0,
    };
    inside + size_of::<Event>()
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
    length: watch::Receiver<(u64, bool)>,
}

impl LogReader {
    /// The next events with their offsets, at most [`READ_BATCH_EVENTS`]; waits for one; `None` after the last.
    ///
    /// # Errors
    /// The disk's. The reader may be asked again.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(u64, Event)>>, String> {
        loop {
            // Marked as seen before the log is read: what is appended in between wakes us at once.
            let (length, ended) = *self.length.borrow_and_update();
            if self.next < length {
                let (start, events) = (self.next, self.log.read(self.next).await?);
                self.next += events.len() as u64;
                return Ok(Some((start..).zip(events).collect()));
            }
            if ended || self.length.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
