//! `batch`: a file of requests in OpenAI's batch format, run as jobs of the class batch.
//!
//! The same command again goes on where the one before it was, whatever has ended it: results that are in the files stay,
//! jobs that the daemon has are found by their keys, the rest is submitted.

mod answer;
mod body;
mod drive;
mod input;
mod progress;
mod results;

use crate::cli::BatchArgs;
use crate::client::{Connection, Context, unexpected};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{output, units};
use drive::Drive;
use input::Input;
use results::Results;
use serde_json::json;
use std::path::{Path, PathBuf};
use zllm_wire::{Answer, BatchId, CancelTarget, Op, Tenant};

/// `batch`.
pub(crate) fn batch(context: &Context, args: BatchArgs) -> Result<(), Failure> {
    if args.cancel {
        return cancel(context, args);
    }
    let input = Input::read(&args.file, args.id)?;
    let paths = Paths::new(&args.file, args.output, args.errors)?;
    let interrupt = Interrupt::install()?;
    let mut connection = context.connect()?;
    interrupt.guard(connection.stream())?;
    can_serve(&mut connection, &input).map_err(|failure| interrupt.explain(failure))?;
    let mut results = Results::open(&input, &paths.output, &paths.errors)?;
    let mut drive = Drive::new(context, &interrupt, &input, args.tenant.clone(), &mut results);
    let driven = drive.run(connection, !args.detach);
    let unsent = drive.unsent();
    drop(drive);
    if let Err(failure) = driven {
        how_to_go_on(&input, unsent, args.tenant.as_ref());
        return Err(failure);
    }
    if args.detach {
        detached(context, &input, &results, &paths)
    } else {
        ended(context, &input, results, &paths)
    }
}

/// Where results go.
struct Paths {
    output: PathBuf,
    errors: PathBuf,
}

impl Paths {
    fn new(file: &Path, output: Option<PathBuf>, errors: Option<PathBuf>) -> Result<Self, Failure> {
        let paths = Self {
            output: output.unwrap_or_else(|| named_after(file, "output.jsonl")),
            errors: errors.unwrap_or_else(|| named_after(file, "errors.jsonl")),
        };
        if paths.output == paths.errors || paths.output == file || paths.errors == file {
            return Err(Failure::Usage("input, --output and --errors are three files".into()));
        }
        Ok(paths)
    }
}

/// A file's name with something else in place of `jsonl`.
fn named_after(file: &Path, end: &str) -> PathBuf {
    if file.extension().is_some_and(|extension| extension == "jsonl") {
        return file.with_extension(end);
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

/// Whether the daemon keeps jobs and has the models that are asked for.
fn can_serve(connection: &mut Connection, input: &Input) -> Result<(), Failure> {
    connection.send(Op::Status)?;
    let status = match connection.answer()? {
        Answer::Status(status) => status,
        other => return Err(unexpected(&other)),
    };
    if !status.jobs_durable {
        let why = status.jobs_fault.unwrap_or_else(|| "it is switched off".into());
        return Err(Failure::Refused(format!(
            "the daemon has no queue that lasts, which a batch needs: {why}"
        )));
    }
    let unknown: Vec<&str> = (input.models.iter().map(String::as_str))
        .filter(|name| status.models.iter().all(|model| model.name != *name))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let known: Vec<&str> = status.models.iter().map(|model| model.name.as_str()).collect();
    Err(Failure::Refused(format!(
        "nothing was sent: the daemon has no model {}; it has {}",
        unknown.join(", "),
        if known.is_empty() { "none".into() } else { known.join(", ") }
    )))
}

/// What to do after the command has ended early.
fn how_to_go_on(input: &Input, unsent: usize, tenant: Option<&Tenant>) {
    let left = match unsent {
        0 => "all requests are jobs, which go on".to_owned(),
        _ => format!(
            "{} of {} requests are jobs, which go on; {unsent} are none yet",
            input.len() - unsent,
            input.len()
        ),
    };
    let tenant = tenant.map(|tenant| format!(" --tenant {tenant}")).unwrap_or_default();
    eprintln!(
        "batch {}: {left}; the same command again goes on from here, `zllmctl batch --cancel {}{tenant}` ends it",
        input.batch, input.batch
    );
}

/// All is submitted and nobody waits.
fn detached(context: &Context, input: &Input, results: &Results, paths: &Paths) -> Result<(), Failure> {
    let (_, failed) = results.counts();
    let jobs = input.len() - failed;
    if context.json {
        output::print_json(
            &json!({ "batch": input.batch, "total": input.len(), "submitted": jobs, "failed": failed }),
        )?;
    } else {
        output::print(&format!("{}\n", input.batch))?;
    }
    some_failed(failed, input, &results::partial(&paths.errors))
}

/// Every request has its result.
fn ended(context: &Context, input: &Input, results: Results, paths: &Paths) -> Result<(), Failure> {
    let ((done, failed), tokens) = (results.counts(), results.tokens);
    results.finish()?;
    let errors = (failed > 0).then_some(&paths.errors);
    if context.json {
        output::print_json(&json!({
            "batch": input.batch,
            "total": input.len(),
            "completed": done,
            "failed": failed,
            "generated_tokens": tokens,
            "output": paths.output,
            "errors": errors,
        }))?;
    } else {
        let mut rows = vec![
            ("batch", input.batch.to_string()),
            ("done", format!("{done} of {}", input.len())),
            ("generated", units::count(tokens, "token")),
            ("output", paths.output.display().to_string()),
        ];
        rows.extend(errors.map(|path| ("errors", path.display().to_string())));
        output::print(&units::pairs(&rows))?;
    }
    some_failed(failed, input, &paths.errors)
}

fn some_failed(failed: usize, input: &Input, told_in: &Path) -> Result<(), Failure> {
    if failed == 0 {
        return Ok(());
    }
    let total = units::count(input.len() as u64, "request");
    Err(Failure::Failed(format!("{failed} of {total} failed; {} says why", told_in.display())))
}

/// `batch --cancel`.
fn cancel(context: &Context, args: BatchArgs) -> Result<(), Failure> {
    let is_file = args.file.is_file();
    let batch = match (args.id, args.file.to_str()) {
        (Some(id), _) => id,
        (None, _) if is_file => input::derived_id(&input::read_bytes(&args.file)?),
        (None, Some(id)) => BatchId::new(id).map_err(|error| {
            Failure::Refused(format!("{id:?} is neither a file nor a batch's id: {error}"))
        })?,
        (None, None) => return Err(Failure::Refused(format!("no file {}", args.file.display()))),
    };
    let target = CancelTarget::Batch { tenant: args.tenant, batch: batch.clone() };
    let jobs = match context.ask(Op::Cancel { target })? {
        Answer::Cancelled { jobs } => jobs,
        other => return Err(unexpected(&other)),
    };
    if is_file && results::is_being_written(&named_after(&args.file, "output.jsonl")) {
        eprintln!(
            "another zllmctl runs this batch and submits what is left of it; end that one first, then cancel again"
        );
    }
    if context.json {
        return output::print_json(&json!({ "batch": batch, "cancelled": jobs }));
    }
    output::print(&format!("{} of batch {batch} cancelled\n", units::count(jobs.into(), "job")))
}
