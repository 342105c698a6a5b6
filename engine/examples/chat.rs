//! A chat on the terminal with the engine alone: `cargo run --release -p zllm-engine --example chat -- MODEL.gguf`.
//!
//! Reads a line, streams the answer, goes on. Each turn reuses the keys and values of the turns before it.

use std::{
    io::{BufRead, Write},
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
};

use zllm_engine::{Engine, GenerationParams, LoadOptions, Message, Prompt};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: chat MODEL.gguf");
        return ExitCode::from(64);
    };
    match chat(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat: {error}");
            ExitCode::from(2)
        }
    }
}

fn chat(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut engine = Engine::load(path, &LoadOptions::default(), &mut |_| {})?;
    let mut messages = Vec::new();
    for line in std::io::stdin().lock().lines() {
        messages.push(Message::user(line?));
        let prompt = Prompt::Chat { messages: messages.clone(), tools: None };
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
