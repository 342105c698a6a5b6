//! Reading a job's events to their end, across lost connections when the job outlives them.

use crate::client::{Connection, Context, unexpected};
use crate::events::{Printer, stats_line};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::limits::{MAX_RECONNECTS, RECONNECT_DELAY, RECONNECT_DELAY_MAX};
use std::thread;
use zllm_wire::{Answer, JobId, Op};

/// `attach`.
pub(crate) fn attach(context: &Context, job: JobId, from: u64) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let mut connection = context.connect()?;
    connection.send(Op::Attach { job: job.clone(), from })?;
    Follower::new(context, job, from, interrupt).follow(connection)
}

/// Reads a job that goes on without us, and tells what it took.
pub(crate) struct Follower<'a> {
    context: &'a Context,
    job: JobId,
    printer: Printer,
    interrupt: Interrupt,
}

impl<'a> Follower<'a> {
    /// A reader of the job's events from the offset `from` on.
    pub(crate) fn new(context: &'a Context, job: JobId, from: u64, interrupt: Interrupt) -> Self {
        Self { context, job, printer: Printer::new(context.json, from), interrupt }
    }

    /// Reads to the end; `connection` has asked for the events already.
    pub(crate) fn follow(mut self, connection: Connection) -> Result<(), Failure> {
        let streamed = self.stream_and_reconnect(connection);
        self.printer.end_line()?;
        if matches!(streamed, Err(Failure::Interrupted)) {
            let (job, next) = (&self.job, self.printer.next_offset);
            eprintln!("job {job} goes on; `zllmctl attach {job} --from {next}` reads on here");
        }
        streamed?;
        eprintln!("{}", stats_line(&self.printer.outcome()?));
        Ok(())
    }

    fn stream_and_reconnect(&mut self, connection: Connection) -> Result<(), Failure> {
        let mut connection = Some(connection);
        let mut tries = 0;
        let mut delay = RECONNECT_DELAY;
        loop {
            let before = self.printer.next_offset;
            let streamed = match connection.take() {
                Some(connection) => stream(connection, &mut self.printer, &self.interrupt),
                None => self.reconnect(),
            };
            let lost = match streamed.map_err(|failure| self.interrupt.explain(failure)) {
                Err(Failure::Lost(why)) => why,
                other => return other,
            };
            let next = self.printer.next_offset;
            if next > before {
                (tries, delay) = (0, RECONNECT_DELAY);
            }
            if tries == MAX_RECONNECTS {
                let job = &self.job;
                return Err(Failure::Lost(format!(
                    "{lost}; gave up after {tries} tries; `zllmctl attach {job} --from {next}` reads on from here"
                )));
            }
            tries += 1;
            thread::sleep(delay);
            delay = (delay * 2).min(RECONNECT_DELAY_MAX);
            if self.interrupt.was_hit() {
                return Err(Failure::Interrupted);
            }
        }
    }

    fn reconnect(&mut self) -> Result<(), Failure> {
        // A daemon that is being started again refuses for a moment; that is a try like any other.
        let mut connection = self.context.connect().map_err(|failure| match failure {
            Failure::Refused(why) => Failure::Lost(why),
            other => other,
        })?;
        connection.send(Op::Attach { job: self.job.clone(), from: self.printer.next_offset })?;
        stream(connection, &mut self.printer, &self.interrupt)
    }
}

/// Prints the events of the request that was sent last, to the end of the stream.
pub(crate) fn stream(
    mut connection: Connection,
    printer: &mut Printer,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    interrupt.guard(connection.stream())?;
    loop {
        match connection.answer()? {
            Answer::Event { offset, event } => printer.event(offset, event)?,
            Answer::Done => return Ok(()),
            other => return Err(unexpected(&other)),
        }
    }
}
