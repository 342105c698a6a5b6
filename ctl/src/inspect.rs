//! `inspect`: what a model file is and what of it would fit, before it is loaded.
//!
//! The daemon says it as JSON (`docs/SOCKET.md`); programs get that as it is. Below are the parts that people are shown.

use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::output;
use crate::units::{self, Align, Table};
use serde::Deserialize;
use serde_json::Value;
use std::path;
use zllm_wire::{Answer, InspectTarget, Op};

#[derive(Deserialize)]
struct Inspection {
    name: String,
    architecture: String,
    files: Vec<String>,
    file_bytes: u64,
    parameters: u64,
    bits_per_weight: f64,
    context_tokens: Option<u64>,
    shape: Shape,
    tensors: Vec<TensorGroup>,
    tokenizer: Tokenizer,
    template: Template,
    kv: Vec<KvCost>,
    problems: Vec<String>,
    weight_bytes: u64,
    settings: Settings,
    fit: Option<Fit>,
}

#[derive(Deserialize)]
struct Shape {
    layers: Option<u64>,
    width: Option<u64>,
    ffn_width: Option<u64>,
    heads: Option<u64>,
    kv_heads: Option<u64>,
    key_dim: Option<u64>,
    value_dim: Option<u64>,
    window_tokens: Option<u64>,
    windowed_layers: Option<u64>,
    experts: Option<u64>,
    experts_used: Option<u64>,
}

#[derive(Deserialize)]
struct TensorGroup {
    kind: String,
    tensors: u64,
    parameters: u64,
    bytes: u64,
    formats: Vec<FormatShare>,
}

#[derive(Deserialize)]
struct FormatShare {
    format: String,
    tensors: u64,
}

#[derive(Deserialize)]
struct Tokenizer {
    model: Option<String>,
    pre: Option<String>,
    tokens: Option<u64>,
    bos: Option<Token>,
    eos: Option<Token>,
    eot: Option<Token>,
    adds_bos: Option<bool>,
    problem: Option<String>,
}

#[derive(Deserialize)]
struct Token {
    id: u32,
    text: String,
}

#[derive(Deserialize)]
struct Template {
    present: bool,
    bytes: u64,
    first_line: Option<String>,
    problem: Option<String>,
}

#[derive(Deserialize)]
struct Settings {
    kv_format: String,
    context_tokens: Option<u64>,
    tokenizer_pre: Option<String>,
    template: Option<String>,
}

#[derive(Deserialize)]
struct KvCost {
    format: String,
    bytes_per_token: f64,
}

#[derive(Deserialize)]
struct Fit {
    memory: Memory,
    weights_fit: bool,
    left_bytes: u64,
    kv: Vec<KvFit>,
}

#[derive(Deserialize)]
struct Memory {
    total_bytes: u64,
    available_bytes: u64,
    kv_budget_bytes: u64,
}

#[derive(Deserialize)]
struct KvFit {
    format: String,
    budget_tokens: u64,
    memory_tokens: u64,
    longest_sequence_tokens: u64,
}

/// `inspect`.
pub(crate) fn inspect(context: &Context, model: String) -> Result<(), Failure> {
    let json = match context.ask(Op::Inspect(target(model)?))? {
        Answer::Inspection { json } => json,
        other => return Err(unexpected(&other)),
    };
    let not_understood = |error: serde_json::Error| {
        Failure::Failed(format!("the daemon's inspection is not understood: {error}"))
    };
    if context.json {
        let value: Value = serde_json::from_str(&json).map_err(not_understood)?;
        return output::print_json(&value);
    }
    let inspection: Inspection = serde_json::from_str(&json).map_err(not_understood)?;
    output::print(&output::foreign(&page(&inspection)))
}

/// What has a slash or ends as model files do is a file. The daemon has another working directory, so the path is made
/// absolute.
fn target(model: String) -> Result<InspectTarget, Failure> {
    if !model.contains('/') && !model.ends_with(".gguf") {
        return Ok(InspectTarget::Model(model));
    }
    let path = path::absolute(&model)
        .map_err(|error| Failure::Failed(format!("cannot make {model:?} an absolute path: {error}")))?;
    match path.into_os_string().into_string() {
        Ok(path) => Ok(InspectTarget::File(path)),
        Err(path) => Err(Failure::Usage(format!("{} is not UTF-8", path.display()))),
    }
}

fn page(inspection: &Inspection) -> String {
    let mut page = facts(inspection);
    if !inspection.tensors.is_empty() {
        page.push('\n');
        page.push_str(&tensor_table(&inspection.tensors));
    }
    if !inspection.kv.is_empty() {
        page.push('\n');
        page.push_str(&kv_table(inspection));
    }
    let problems = inspection.problems.iter().map(|problem| ("does not run", problem));
    let tokenizer = inspection.tokenizer.problem.iter().map(|problem| ("no text, only token ids", problem));
    let template = inspection.template.problem.iter().map(|problem| ("no conversations", problem));
    for (what, problem) in problems.chain(tokenizer).chain(template) {
        page.push_str(&format!("\n{what}: {problem}\n"));
    }
    page
}

fn facts(inspection: &Inspection) -> String {
    let files = match &*inspection.files {
        [file] => file.clone(),
        files => {
            format!("{} and {} more", files.first().map_or("", |file| file), files.len().saturating_sub(1))
        }
    };
    let mut rows = vec![
        ("name", inspection.name.clone()),
        ("family", inspection.architecture.clone()),
        ("file", format!("{files}, {}", units::bytes(inspection.file_bytes))),
        (
            "weights",
            format!(
                "{} parameters, {}, {:.2} bits each",
                parameters(inspection.parameters),
                units::bytes(inspection.weight_bytes),
                inspection.bits_per_weight
            ),
        ),
        ("shape", shape(&inspection.shape)),
        (
            "context",
            inspection.context_tokens.map_or_else(|| "not said".into(), |n| units::count(n, "token")),
        ),
        ("tokenizer", tokenizer(&inspection.tokenizer)),
        ("template", template(inspection)),
        ("settings", settings(&inspection.settings)),
    ];
    if let Some(fit) = &inspection.fit {
        let memory = &fit.memory;
        let (total, available) = (units::bytes(memory.total_bytes), units::bytes(memory.available_bytes));
        let weights = match fit.weights_fit {
            true => format!("the weights fit and leave {}", units::bytes(fit.left_bytes)),
            false => "the weights do not fit".to_owned(),
        };
        rows.push(("memory", format!("{available} available of {total}: {weights}")));
    }
    units::pairs(&rows)
}

fn shape(shape: &Shape) -> String {
    let heads = shape.heads.map(|heads| {
        let dims = match (shape.key_dim, shape.value_dim) {
            (Some(key), Some(value)) if key != value => format!(" of {key} and {value}"),
            (Some(key), _) => format!(" of {key}"),
            (None, _) => String::new(),
        };
        let shared = shape.kv_heads.filter(|kv| *kv != heads);
        format!(
            "{}{dims}{}",
            units::count(heads, "head"),
            shared.map_or_else(String::new, |kv| format!(" ({kv} for keys and values)"))
        )
    });
    let window = shape.window_tokens.map(|window| match shape.windowed_layers {
        Some(layers) => format!("window {window} in {}", units::count(layers, "layer")),
        None => format!("window {window}"),
    });
    let experts = shape.experts.map(|experts| match shape.experts_used {
        Some(used) => format!("{experts} experts, {used} a token"),
        None => format!("{experts} experts"),
    });
    let layers = shape.layers.map(|layers| units::count(layers, "layer"));
    let ffn_width = shape.ffn_width.map(|width| format!("feed-forward {width}"));
    let width = shape.width.map(|width| format!("width {width}"));
    let parts = [layers, width, ffn_width, heads, window, experts];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn tokenizer(tokenizer: &Tokenizer) -> String {
    let Some(model) = &tokenizer.model else { return "none".into() };
    let pre = tokenizer.pre.as_ref().map(|pre| format!(" ({pre})"));
    let mut text = format!("{model}{}", pre.unwrap_or_default());
    if let Some(tokens) = tokenizer.tokens {
        text.push_str(&format!(", {}", units::count(tokens, "token")));
    }
    let named = [("begins", &tokenizer.bos), ("ends", &tokenizer.eos), ("turn ends", &tokenizer.eot)];
    for (what, token) in named {
        if let Some(Token { id, text: name }) = token {
            let always = if what == "begins" && tokenizer.adds_bos == Some(true) { ", added" } else { "" };
            text.push_str(&format!(", {what} {name} ({id}{always})"));
        }
    }
    text
}

fn template(inspection: &Inspection) -> String {
    let template = &inspection.template;
    if !template.present {
        let text = inspection.tokenizer.problem.is_none() && inspection.settings.template.is_none();
        let what_works =
            if text { "; send plain text, or conversations with a template of your own" } else { "" };
        return format!("none{what_works}");
    }
    let line = template.first_line.as_ref().map(|line| format!(": {}", shortened(line, 60)));
    format!("{}{}", units::bytes(template.bytes), line.unwrap_or_default())
}

/// What the daemon's configuration says of the model; all but the format goes before what the file says.
fn settings(settings: &Settings) -> String {
    let mut text = format!("keys and values as {}", settings.kv_format);
    if let Some(context) = settings.context_tokens {
        text.push_str(&format!(", context of {}", units::count(context, "token")));
    }
    for (what, value) in [("tokenizer_pre", &settings.tokenizer_pre), ("template", &settings.template)] {
        if let Some(value) = value {
            text.push_str(&format!(", {what} {value}"));
        }
    }
    text
}

fn shortened(line: &str, chars: usize) -> String {
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

fn tensor_table(groups: &[TensorGroup]) -> String {
    let mut table = Table::new([
        ("TENSORS", Align::Left),
        ("COUNT", Align::Right),
        ("PARAMETERS", Align::Right),
        ("SIZE", Align::Right),
        ("FORMATS", Align::Left),
    ]);
    for group in groups {
        let one = group.formats.len() == 1;
        let format = |share: &FormatShare| match one {
            true => share.format.clone(),
            false => format!("{} {}", share.tensors, share.format),
        };
        table.row([
            group.kind.replace('_', " "),
            group.tensors.to_string(),
            parameters(group.parameters),
            units::bytes(group.bytes),
            group.formats.iter().map(format).collect::<Vec<_>>().join(", "),
        ]);
    }
    table.render()
}

fn kv_table(inspection: &Inspection) -> String {
    let budget = inspection.fit.as_ref().map(|fit| units::bytes(fit.memory.kv_budget_bytes));
    let budget = budget.map_or_else(String::new, |bytes| format!("IN {bytes}"));
    let mut table = Table::new([
        ("KV FORMAT", Align::Left),
        ("A TOKEN", Align::Right),
        (&*budget, Align::Right),
        ("IN MEMORY", Align::Right),
        ("LONGEST", Align::Right),
    ]);
    // Keys and values in two formats, such as `i16/q8g64`, take half of each: six more rows for programs only.
    for cost in inspection.kv.iter().filter(|cost| !cost.format.contains('/')) {
        let fit = inspection.fit.iter().flat_map(|fit| &fit.kv).find(|fit| fit.format == cost.format);
        let tokens = |of: fn(&KvFit) -> u64| fit.map_or_else(|| "-".into(), |fit| of(fit).to_string());
        table.row([
            cost.format.clone(),
            units::bytes(cost.bytes_per_token.round() as u64),
            tokens(|fit| fit.budget_tokens),
            tokens(|fit| fit.memory_tokens),
            tokens(|fit| fit.longest_sequence_tokens),
        ]);
    }
    table.render()
}

/// A count of parameters as model names give it.
fn parameters(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1} K", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files_are_told_apart() {
        assert_eq!(target("m".into()).unwrap(), InspectTarget::Model("m".into()));
        assert_eq!(target("/a/m".into()).unwrap(), InspectTarget::File("/a/m".into()));
        let InspectTarget::File(path) = target("m.gguf".into()).unwrap() else { panic!("a file") };
        assert!(path.starts_with('/') && path.ends_with("/m.gguf"), "{path}");
    }

    #[test]
    fn counts_of_parameters() {
        for (count, text) in
            [(999, "999"), (134_515_008, "134.5 M"), (7_241_732_096, "7.24 B"), (1500, "1.5 K")]
        {
            assert_eq!(parameters(count), text);
        }
    }
}
