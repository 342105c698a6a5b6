//! `run` without a prompt, at a pseudo-terminal.

mod common;

use common::*;
use nix::pty::openpty;
use std::{
    fs::File,
    io::{Read, Write},
    process::Stdio,
};
use zllm_wire::*;

/// Reads what the terminal shows until `wanted` is there.
fn shows(terminal: &mut File, wanted: &str) -> String {
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&shown).into_owned();
        if text.contains(wanted) {
            return text;
        }
        match terminal.read(&mut buffer) {
            Ok(bytes) if bytes > 0 => shown.extend_from_slice(&buffer[..bytes]),
            end => panic!("the terminal closed ({end:?}) before {wanted:?}: {text:?}"),
        }
    }
}

fn turn(messages: &'static str, answer: &'static str) -> Box<dyn FnOnce(Peer) + Send> {
    Box::new(move |mut peer| {
        peer.welcome();
        let Request { id, body: Op::Submit(submit) } = peer.request() else { panic!("no submission") };
        let prompt = Prompt::Chat {
            messages_json: messages.into(),
            tools_json: None,
            template: None,
            continue_last: false,
        };
        assert_eq!((submit.prompt, submit.detached), (prompt, false));
        peer.reply(id, Answer::Accepted { job: job(), known: false });
        peer.events(id, 0, [text(answer), finished()]);
        peer.reply(id, Answer::Done);
    })
}

#[test]
fn a_conversation() {
    let loads: Box<dyn FnOnce(Peer) + Send> = Box::new(|mut peer| {
        peer.welcome();
        let id = peer.expect(Op::Load { model: "m".into() });
        peer.reply(id, Answer::Model(model("m", true)));
        assert!(peer.client_leaves());
    });
    // The third answer is cut short by Ctrl-C: what was said stays said.
    let cut: Box<dyn FnOnce(Peer) + Send> = Box::new(|mut peer| {
        peer.welcome();
        let Request { id, body: Op::Submit(_) } = peer.request() else { panic!("no submission") };
        peer.reply(id, Answer::Accepted { job: job(), known: false });
        peer.events(id, 0, [text("\u{1b}[31mred")]);
        assert!(peer.client_leaves());
    });
    let daemon = Daemon::start([
        loads,
        turn(r#"[{"role":"user","content":"hi"}]"#, "first answer"),
        turn(
            r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"first answer"},{"role":"user","content":"and"}]"#,
            "second answer",
        ),
        cut,
    ]);
    let pty = openpty(None, None).unwrap();
    let mut terminal = File::from(pty.master);
    let stdin = pty.slave.try_clone().unwrap();
    let stdout = pty.slave.try_clone().unwrap();
    let mut child = daemon
        .command(&["run", "m"])
        .env("TERM", "xterm")
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(pty.slave))
        .spawn()
        .unwrap();
    let mut types = |line: &str, shown: &str| {
        terminal.write_all(line.as_bytes()).unwrap();
        shows(&mut terminal, shown)
    };
    types("", "> ");
    types("/stats\r", "nothing was asked yet");
    types("hi\r", "first answer");
    types("and\r", "second answer");
    types("/stats\r", "(32 cached on device), generated 92 tokens");
    types("/reset\r", "a new conversation");
    types("/nonsense\r", "no command /nonsense");
    types("/help\r", "Ctrl-D");
    types("more\r", "\u{fffd}[31mred");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().cast_signed()),
        nix::sys::signal::Signal::SIGINT,
    )
    .unwrap();
    types("", "> ");
    types("/exit\r", "/exit");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let history = std::fs::read_to_string(daemon.dir.path().join(".local/state/zllm/history")).unwrap();
    assert!(history.contains("\nhi\n") && history.contains("\nmore\n"), "{history}");
    daemon.end();
}
