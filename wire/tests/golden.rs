//! The exact bytes of some frames, in `golden.txt`. They were printed by this test at version 5; a difference is a
//! change of the format and needs a new version.

mod common;

use common::*;
use std::fmt::Write;
use zllm_wire::*;

fn frames() -> String {
    let mut out = String::new();
    let mut row = |name: &str, frame: Vec<u8>| {
        write!(out, "{name}:").unwrap();
        for byte in frame {
            write!(out, " {byte:02x}").unwrap();
        }
        out.push('\n');
    };
    for (name, frame) in ["hello", "request"].iter().zip(client_frames()) {
        row(name, encode(&frame).unwrap());
    }
    for (name, frame) in ["welcome", "refused", "reply"].iter().zip(server_frames()) {
        row(name, encode(&frame).unwrap());
    }
    for (op, body) in ops().into_iter().enumerate() {
        row(&format!("op {op}"), encode(&ClientFrame::Request(Request { id: 300, body })).unwrap());
    }
    for (index, prompt) in prompts().into_iter().enumerate() {
        row(&format!("prompt {index}"), encode(&prompt).unwrap());
    }
    for (index, body) in answers().into_iter().enumerate() {
        row(&format!("answer {index}"), encode(&ServerFrame::Reply(Reply { id: 1, body })).unwrap());
    }
    for (index, outcome) in outcomes().into_iter().enumerate() {
        row(&format!("outcome {index}"), encode(&outcome).unwrap());
    }
    for (index, why) in wait_reasons().into_iter().enumerate() {
        row(&format!("wait {index}"), encode(&why).unwrap());
    }
    for (index, what) in moments().into_iter().enumerate() {
        row(&format!("moment {index}"), encode(&what).unwrap());
    }
    for (index, event) in events().into_iter().enumerate() {
        row(&format!("event {index}"), encode(&event).unwrap());
    }
    let told = Event::Text { choice: 1, text: "né".into(), tokens: 2, logprobs: logprobs() };
    row("event with log probabilities", encode(&told).unwrap());
    for (index, code) in error_codes().into_iter().enumerate() {
        row(&format!("error {index}"), encode(&Fault { code, message: "no".into() }).unwrap());
    }
    out
}

#[test]
fn bytes_are_as_they_were() {
    let now = frames();
    let then = include_str!("golden.txt");
    for (now, then) in now.lines().zip(then.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(now.lines().count(), then.lines().count(), "all frames now:\n{now}");
}

/// Every frame that `docs/SOCKET.md` shows is one of the above, and every variant is described there.
#[test]
fn the_documentation_shows_these_bytes() {
    let page = include_str!("../../docs/SOCKET.md");
    let mut inside = false;
    let mut shown = 0;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside {
            shown += 1;
            let row = format!(": {line}\n");
            assert!(include_str!("golden.txt").contains(&row), "docs/SOCKET.md shows other bytes: {line}");
        }
    }
    assert_eq!(shown, 5);
    described(page, "Op", ops());
    described(page, "Answer", answers());
    described(page, "Event", events());
    described(page, "ErrorCode", error_codes());
    described(page, "StopCause", stop_causes());
    described(page, "Prompt", prompts());
    described(page, "CacheOutcome", outcomes());
    described(page, "WaitReason", wait_reasons());
    described(page, "MomentKind", moments());
    described(page, "ClientFrame", client_frames());
    described(page, "ServerFrame", server_frames());
}

fn described(page: &str, name: &str, values: Vec<impl std::fmt::Debug>) {
    for (index, value) in values.into_iter().enumerate() {
        let debug = format!("{value:?}");
        let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        let row = format!("| {index} | `{variant}` |");
        assert!(page.contains(&row), "docs/SOCKET.md has no row {row:?} for {name}");
    }
}
