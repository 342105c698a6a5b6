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
    let mut printer = Printer::new(context.json, from);
    let mut connection = context.connect()?;
    connection.send(Op::Attach { job: job.clone(), from })?;
    follow(context, connection, &job, &mut printer, &interrupt)
}

/// Streams a job that goes on without us, and tells what it took.
pub(crate) fn follow(
    context: &Context,
    connection: Connection,
    job: &JobId,
    printer: &mut Printer,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    match stream_and_reconnect(context, connection, job, printer, interrupt) {
        Err(Failure::Interrupted) => {
            printer.end_line()?;
            eprintln!(
                "job {job} goes on; `zllmctl attach {job} --from {}` reads on here",
                printer.next_offset
            );
            Err(Failure::Interrupted)
        }
        streamed => {
            printer.end_line()?;
            streamed?;
            eprintln!("{}", stats_line(&printer.outcome()?));
            Ok(())
        }
    }
}

fn stream_and_reconnect(
    context: &Context,
    connection: Connection,
    job: &JobId,
    printer: &mut Printer,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut connection = Some(connection);
    let mut tries = 0;
    let mut delay = RECONNECT_DELAY;
    loop {
        let before = printer.next_offset;
        let streamed = match connection.take() {
            Some(connection) => stream(connection, printer, interrupt),
            None => reconnect(context, job, printer, interrupt),
        };
        let lost = match streamed.map_err(|failure| interrupt.explain(failure)) {
            Err(Failure::Lost(why)) => why,
            other => return other,
        };
        if printer.next_offset > before {
            (tries, delay) = (0, RECONNECT_DELAY);
        }
        if tries == MAX_RECONNECTS {
            return Err(Failure::Lost(format!(
                "{lost}; gave up after {tries} tries; `zllmctl attach {job} --from {}` reads on from here",
                printer.next_offset
            )));
        }
        tries += 1;
        thread::sleep(delay);
        delay = (delay * 2).min(RECONNECT_DELAY_MAX);
        if interrupt.was_hit() {
            return Err(Failure::Interrupted);
        }
    }
}

fn reconnect(
    context: &Context,
    job: &JobId,
    printer: &mut Printer,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    // A daemon that is being started again refuses for a moment; that is a try like any other.
    let mut connection = context.connect().map_err(|failure| match failure {
        Failure::Refused(why) => Failure::Lost(why),
        other => other,
    })?;
    connection.send(Op::Attach { job: job.clone(), from: printer.next_offset })?;
    stream(connection, printer, interrupt)
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
