//! Reading a job's events to their end, across lost connections when the job outlives them.

use crate::cli::AttachArgs;
use crate::client::{Connection, Context, unexpected};
use crate::clock;
use crate::events::{Printer, stats_line};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::limits::{RECONNECT_DELAY, RECONNECT_DELAY_MAX};
use crate::units;
use std::time::{Duration, Instant};
use zllm_wire::{Answer, JobId, Op};

/// `attach`.
pub(crate) fn attach(context: &Context, args: AttachArgs) -> Result<(), Failure> {
    let AttachArgs { job, from, reconnect_for } = args;
    let interrupt = Interrupt::install()?;
    let mut connection = context.connect()?;
    connection.send(Op::Attach { job: job.clone(), from })?;
    Follower::new(context, job, from, reconnect_for, interrupt).follow(connection)
}

/// Reads a job that goes on without us, and tells what it took.
pub(crate) struct Follower<'a> {
    context: &'a Context,
    job: JobId,
    /// How long a daemon that is gone is waited for.
    reconnect_for: Duration,
    printer: Printer,
    interrupt: Interrupt,
}

impl<'a> Follower<'a> {
    /// A reader of the job's events from the offset `from` on.
    pub(crate) fn new(
        context: &'a Context,
        job: JobId,
        from: u64,
        reconnect_for: Duration,
        interrupt: Interrupt,
    ) -> Self {
        Self { context, job, reconnect_for, printer: Printer::new(context.json, from), interrupt }
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
        let mut outage = None;
        loop {
            let before = self.printer.next_offset;
            let streamed = match connection.take() {
                Some(connection) => stream(connection, &mut self.printer, &self.interrupt),
                None => self.reconnect(),
            };
            let read_some = self.printer.next_offset > before;
            let lost = match streamed.map_err(|failure| self.interrupt.explain(failure)) {
                // A daemon that stops may end the stream in good order; the rest comes after its restart.
                Ok(()) if read_some && !self.printer.has_ended() => "the daemon ended the stream".into(),
                Err(Failure::Lost(why)) => why,
                other => return other,
            };
            if read_some {
                outage = None;
            }
            if outage.is_none() && !self.reconnect_for.is_zero() {
                self.tell(&lost);
            }
            outage.get_or_insert_with(Outage::begin).wait(self, lost)?;
        }
    }

    /// Tells that the rest may take a while.
    fn tell(&self, lost: &str) {
        let line_feed = if self.printer.is_within_a_line() { "\n" } else { "" };
        let (next, limit) = (self.printer.next_offset, units::wait(self.reconnect_for.as_millis() as u64));
        eprintln!(
            "{line_feed}connection to the daemon lost: {lost}; trying for {limit} to read on from event {next}"
        );
    }

    fn reconnect(&mut self) -> Result<(), Failure> {
        // A daemon that is being started again refuses for a moment; that is a try like any other.
        let mut connection = self.context.connect().map_err(|failure| match failure {
            Failure::Refused(why) => Failure::Lost(why),
            other => other,
        })?;
        connection.send(Op::Attach { job: self.job.clone(), from: self.printer.next_offset })?;
        stream(connection, &mut self.printer, &self.interrupt).map_err(|failure| match failure {
            Failure::Busy { message, .. } => Failure::Lost(message),
            Failure::Refused(why) => Failure::Failed(format!("the job did not outlive the daemon: {why}")),
            other => other,
        })
    }
}

/// The time since the last event in which no connection gave one.
struct Outage {
    since: Instant,
    delay: Duration,
}

impl Outage {
    fn begin() -> Self {
        Self { since: clock::now(), delay: RECONNECT_DELAY }
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// The time is over, or Ctrl-C came.
    fn wait(&mut self, follower: &Follower<'_>, lost: String) -> Result<(), Failure> {
        let left = follower.reconnect_for.saturating_sub(clock::now() - self.since);
        if left.is_zero() {
            let (job, next) = (&follower.job, follower.printer.next_offset);
            let tried = match follower.reconnect_for.as_millis() as u64 {
                0 => String::new(),
                ms => format!("; gave up after {}", units::wait(ms)),
            };
            return Err(Failure::Lost(format!(
                "{lost}{tried}; `zllmctl attach {job} --from {next}` reads on from here"
            )));
        }
        follower.interrupt.sleep(self.delay.min(left))?;
        self.delay = (self.delay * 2).min(RECONNECT_DELAY_MAX);
        Ok(())
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
