//! What is shown, fetched by a thread of its own: a daemon that hangs must not hang the keys.

use crate::client::{Connection, Context, unexpected};
use crate::failure::Failure;
use serde::Serialize;
use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};
use zllm_wire::{Answer, Op, QueueReport, Status};

/// The daemon at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Snapshot {
    /// Itself.
    pub(crate) status: Box<Status>,
    /// Its queue.
    pub(crate) queue: Box<QueueReport>,
}

/// A snapshot, or why there is none.
pub(crate) type News = Result<Snapshot, Failure>;

impl Snapshot {
    /// Asks for both.
    pub(crate) fn fetch(connection: &mut Connection) -> News {
        connection.send(Op::Status)?;
        let status = match connection.answer()? {
            Answer::Status(status) => status,
            other => return Err(unexpected(&other)),
        };
        connection.send(Op::Queue)?;
        match connection.answer()? {
            Answer::Queue(queue) => Ok(Self { status, queue }),
            other => Err(unexpected(&other)),
        }
    }
}

/// Looks again and again until nobody listens; connects anew after a failure.
pub(crate) fn start(context: Context, interval: Duration) -> Result<Receiver<News>, Failure> {
    // One waits while the next is fetched.
    let (sender, news) = sync_channel(1);
    thread::Builder::new()
        .name("feed".into())
        .spawn(move || feed(&context, interval, &sender))
        .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    Ok(news)
}

fn feed(context: &Context, interval: Duration, sender: &SyncSender<News>) {
    let mut connection = None;
    loop {
        let looked = match connection.take() {
            Some(connection) => Ok(connection),
            None => context.connect(),
        };
        let news = looked.and_then(|mut open| {
            let snapshot = Snapshot::fetch(&mut open)?;
            connection = Some(open);
            Ok(snapshot)
        });
        if sender.send(news).is_err() {
            return;
        }
        thread::sleep(interval);
    }
}
