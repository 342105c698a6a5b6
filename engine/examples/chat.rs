//! A chat on the terminal with the engine alone:
//! `cargo run --release -p zllm-engine --example chat -- MODEL.gguf [--template NAME|FILE]`.
//!
//! Reads a line, streams the answer, goes on. Each turn reuses the keys and values of the turns before it.

use std::{
    io::{BufRead, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
};

use zllm_engine::{
    Chat, Engine, GenerationParams, LoadOptions, Message, Prompt, TemplateChoice, template::BUILTIN_NAMES,
};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).collect::<Vec<_>>();
    let template = match args.iter().position(|arg| arg == "--template") {
        Some(at) if at + 1 < args.len() => {
            args.remove(at);
            args.remove(at).into_string().ok()
        }
        _ => None,
    };
    let [path] = args.as_slice() else {
        eprintln!("usage: chat MODEL.gguf [--template NAME|FILE]\ntemplates: {}", BUILTIN_NAMES.join(", "));
        return ExitCode::from(64);
    };
    match chat(&PathBuf::from(path), template.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat: {error}");
            ExitCode::from(2)
        }
    }
}

fn chat(path: &Path, template: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let template = template.map(|template| match template.contains(['/', '.']) {
        true => std::fs::read_to_string(template).map(TemplateChoice::Source),
        false => Ok(TemplateChoice::Named(template.to_owned())),
    });
    let options = LoadOptions { template: template.transpose()?, ..LoadOptions::default() };
    let mut engine = Engine::load(path, &options, &mut |_| {})?;
    let mut messages = Vec::new();
    for line in std::io::stdin().lock().lines() {
        messages.push(Message::user(line?));
        let prompt = Prompt::Chat(Chat::new(messages.clone()));
        let summary = engine.generate(&prompt, &GenerationParams::default(), |text| {
            print!("{text}");
            match std::io::stdout().flush() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        println!();
        let kv = engine.kv();
        eprintln!(
            "[{} prompt tokens, {} of them cached, {} generated; {} of {} KV blocks]",
            summary.prompt_tokens,
            summary.cached_tokens,
            summary.tokens.len(),
            kv.used_blocks,
            kv.total_blocks,
        );
        messages.push(Message::assistant(summary.text));
    }
    Ok(())
}
