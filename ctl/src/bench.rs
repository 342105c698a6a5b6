//! `bench`: how fast the daemon serves a model, as its clients see it: prompts of random tokens that nothing is kept of afterwards,
//! decodes behind short and long ones, several sessions at once.
//!
//! Every test's KV goes when the test ends, and no test begins that would push what is kept of others off the device. It is
//! written to the SSD before it goes, as the KV of all sessions is: where that is full, the oldest there make room. What
//! cannot be measured is left out, with the reason.

mod plan;
mod run;

use crate::cli::BenchArgs;
use crate::client::{Connection, Context, unexpected};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::units::{self, Align, Table};
use crate::{clock, models, output};
use run::{Outcome, Runner};
use serde::Serialize;
use zllm_wire::{Answer, InspectTarget, ModelInfo, ModelState, Op, QueueReport, Status, Tier};

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    model: ModelInfo,
    /// `None`: it was loaded before.
    load_s: Option<f64>,
    /// Memory that zllm uses of the model's device.
    device_used_bytes: u64,
    /// Room for keys and values of running jobs.
    kv_bytes: u64,
    tests: Vec<Measured>,
    left_out: Vec<LeftOut>,
}

#[derive(Debug, Serialize)]
struct Measured {
    test: String,
    tokens_per_s: f64,
    first_token_ms: f64,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    test: String,
    reason: String,
}

/// `bench`.
pub(crate) fn bench(context: &Context, args: &BenchArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let queue = queue(context)?;
    let status = status(&mut context.connect()?)?;
    if queue.draining || status.draining {
        let why = "the daemon drains: nothing new starts; `zllmctl resume` ends a drain that a client began";
        return Err(Failure::Refused(why.into()));
    }
    if !queue.running.is_empty() || !queue.waiting.is_empty() {
        let (running, waiting) = (queue.running.len(), queue.waiting.len());
        eprintln!(
            "note: {running} running and {waiting} waiting jobs of others take their share of the machine"
        );
    }
    let name = chosen(&status.models, args.model.as_deref())?;
    let was_loaded = status.models.iter().any(|info| info.name == name && info.state == ModelState::Loaded);
    let (model, load_s) = load(context, &name, &interrupt)?;
    let mut connection = context.connect()?;
    let vocabulary = vocabulary(&mut connection, &name)?;

    let mut runner = Runner::new(connection, &interrupt, &name, vocabulary)?;
    let (mut measured, mut left_out) = (Vec::new(), Vec::new());
    for test in plan::all(args) {
        let blocks = self::status(runner.connection())?.blocks;
        let outcome = match test.refusal(&model, &queue, &blocks) {
            Some(reason) => Outcome::LeftOut(reason),
            None => runner.best_of(&test, args.repeat)?,
        };
        let test = test.to_string();
        eprintln!("{test}: {}", outcome.in_words());
        match outcome {
            Outcome::Figures { tokens_per_s, first_token_ms } => {
                measured.push(Measured { test, tokens_per_s, first_token_ms });
            }
            Outcome::LeftOut(reason) => left_out.push(LeftOut { test, reason }),
        }
    }
    let status = self::status(runner.connection())?;
    // A model that is cut has a stage on each of several: `a+b`.
    let names: Vec<_> = model.device.iter().flat_map(|names| names.split('+')).collect();
    let devices = status.devices.iter().filter(|device| names.contains(&device.name.as_str()));
    let blocks = status.blocks.iter().find(|row| row.model == name && row.tier == Tier::Device);
    let report = Report {
        load_s: (!was_loaded).then_some(load_s),
        device_used_bytes: devices.map(|device| device.used_bytes).sum(),
        kv_bytes: blocks.map_or(0, |row| row.block_bytes * row.total),
        model,
        tests: measured,
        left_out,
    };
    if context.json { output::print_json(&report) } else { output::print(&output::foreign(&page(&report))) }
}

/// The model that is meant.
fn chosen(models: &[ModelInfo], name: Option<&str>) -> Result<String, Failure> {
    let names = |wanted: &dyn Fn(&ModelInfo) -> bool| -> Vec<&str> {
        models.iter().filter(|info| wanted(info)).map(|info| info.name.as_str()).collect()
    };
    let (all, loaded) = (names(&|_| true), names(&|info| info.state == ModelState::Loaded));
    match (name, loaded.as_slice(), all.as_slice()) {
        (Some(name), _, _) if all.contains(&name) => Ok(name.to_owned()),
        (None, [only], _) | (None, _, [only]) => Ok((*only).to_owned()),
        (_, _, []) => Err(Failure::Refused(
            "the daemon knows no models; `zllmctl pull smollm2-135m` fetches a small one".into(),
        )),
        (Some(name), _, _) => {
            Err(Failure::Refused(format!("no model {name:?}; there are {}", all.join(", "))))
        }
        (None, _, _) => Err(Failure::Usage(format!("which model? There are {}", all.join(", ")))),
    }
}

/// Loads it, on a connection that Ctrl-C may break; how long that took, in seconds.
fn load(context: &Context, name: &str, interrupt: &Interrupt) -> Result<(ModelInfo, f64), Failure> {
    let mut connection = context.connect()?;
    interrupt.guard(connection.stream())?;
    let start = clock::now();
    let info = models::load_on(&mut connection, name).map_err(|failure| interrupt.explain(failure))?;
    interrupt.release();
    Ok((info, (clock::now() - start).as_secs_f64()))
}

/// How many token ids the model knows.
fn vocabulary(connection: &mut Connection, name: &str) -> Result<u32, Failure> {
    let json = match connection.ask(Op::Inspect(InspectTarget::Model(name.to_owned())))? {
        Answer::Inspection { json } => json,
        other => return Err(unexpected(&other)),
    };
    let facts: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
    let tokens = facts["tokenizer"]["tokens"].as_u64().and_then(|tokens| u32::try_from(tokens).ok());
    tokens
        .filter(|tokens| *tokens > 0)
        .ok_or_else(|| Failure::Failed(format!("the daemon does not know how many tokens {name} has")))
}

fn status(connection: &mut Connection) -> Result<Status, Failure> {
    match connection.ask(Op::Status)? {
        Answer::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}

fn queue(context: &Context) -> Result<QueueReport, Failure> {
    match context.ask(Op::Queue)? {
        Answer::Queue(queue) => Ok(*queue),
        other => Err(unexpected(&other)),
    }
}

fn page(report: &Report) -> String {
    let Report { model, load_s, device_used_bytes, kv_bytes, tests, left_out } = report;
    let device = model.device.as_deref().unwrap_or("no device");
    let mut page = units::pairs(&[
        ("model", format!("{}, {}", model.name, model.architecture)),
        ("weights", units::bytes(model.weight_bytes)),
        ("loaded", load_s.map_or("before".into(), |seconds| format!("in {seconds:.2} s"))),
        ("memory", format!("{} used on {device}", units::bytes(*device_used_bytes))),
        ("KV", format!("room for {}", units::bytes(*kv_bytes))),
    ]);
    let mut table =
        Table::new([("TEST", Align::Left), ("TOKENS/S", Align::Right), ("FIRST TOKEN", Align::Right)]);
    for Measured { test, tokens_per_s, first_token_ms } in tests {
        table.row([test.clone(), format!("{tokens_per_s:.1}"), format!("{first_token_ms:.1} ms")]);
    }
    if !tests.is_empty() {
        page.push('\n');
        page.push_str(&table.render());
    }
    if !left_out.is_empty() {
        page.push('\n');
    }
    for LeftOut { test, reason } in left_out {
        page.push_str(&format!("{test} left out: {reason}\n"));
    }
    page
}
