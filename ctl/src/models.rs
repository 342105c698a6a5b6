//! `models`, `load`, `unload`.

use crate::client::{Connection, Context, unexpected};
use crate::failure::Failure;
use crate::output;
use crate::units::{self, Align, Table};
use serde_json::json;
use zllm_wire::{Answer, LoadStage, ModelInfo, ModelState, Op};

/// `models`.
pub(crate) fn list(context: &Context) -> Result<(), Failure> {
    let models = match context.ask(Op::Models)? {
        Answer::Models(models) => models,
        other => return Err(unexpected(&other)),
    };
    if context.json {
        return output::print_json(&models);
    }
    if models.is_empty() {
        eprintln!("no models; `zllmctl pull smollm2-135m` fetches a small one");
        return Ok(());
    }
    output::print(&output::foreign(&table(&models)))
}

/// `load`.
pub(crate) fn load(context: &Context, model: &str) -> Result<(), Failure> {
    let info = load_on(&mut context.connect()?, model)?;
    if context.json { output::print_json(&info) } else { output::print(&output::foreign(&table(&[info]))) }
}

/// `unload`.
pub(crate) fn unload(context: &Context, model: String) -> Result<(), Failure> {
    match context.ask(Op::Unload { model: model.clone() })? {
        Answer::Done if context.json => output::print_json(&json!({ "unloaded": model })),
        Answer::Done => output::print(&format!("{model} unloaded\n")),
        other => Err(unexpected(&other)),
    }
}

/// Loads a model on an open connection, with a bar while it takes time.
pub(crate) fn load_on(connection: &mut Connection, model: &str) -> Result<ModelInfo, Failure> {
    connection.send(Op::Load { model: model.to_owned() })?;
    let mut bar = None;
    let loaded = loop {
        match connection.answer() {
            Ok(Answer::Progress { stage, done_bytes, total_bytes }) => {
                let bar = bar.get_or_insert_with(|| output::bytes_bar("", total_bytes));
                bar.set_prefix(format!("{} {model}", stage_name(stage)));
                bar.set_length(total_bytes);
                bar.set_position(done_bytes);
            }
            Ok(Answer::Model(info)) => break Ok(info),
            Ok(other) => break Err(unexpected(&other)),
            Err(failure) => break Err(failure),
        }
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    loaded
}

/// The models as people read them; why one failed is too long for a column and stands below.
pub(crate) fn table(models: &[ModelInfo]) -> String {
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("FAMILY", Align::Left),
        ("SIZE", Align::Right),
        ("CONTEXT", Align::Right),
        ("DEVICE", Align::Left),
    ]);
    for info in models {
        table.row([
            info.name.clone(),
            state(&info.state).into(),
            if info.architecture.is_empty() { "-".into() } else { info.architecture.clone() },
            units::bytes(info.weight_bytes),
            info.context_tokens.map_or_else(|| "-".into(), |tokens| tokens.to_string()),
            info.device.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    let mut page = table.render();
    for info in models {
        if let ModelState::Failed { message } = &info.state {
            page.push_str(&format!("{} failed: {message}\n", info.name));
        }
    }
    page
}

fn state(state: &ModelState) -> &'static str {
    match state {
        ModelState::Available => "available",
        ModelState::Loading => "loading",
        ModelState::Loaded => "loaded",
        ModelState::Failed { .. } => "failed",
    }
}

fn stage_name(stage: LoadStage) -> &'static str {
    match stage {
        LoadStage::Open => "opening",
        LoadStage::Weights => "loading",
    }
}
