//! `top`: at a pseudo-terminal, and without a terminal.

mod common;

use common::*;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use zllm_wire::*;

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

fn queue(limit: u32) -> Answer {
    Answer::Queue(Box::new(QueueReport {
        draining: false,
        waiting: vec![],
        running: vec![],
        classes: vec![],
        tenants: vec![],
        running_limit: limit,
    }))
}

/// Answers so many looks, then goes away.
fn looks(count: usize, limit: u32) -> Box<dyn FnOnce(Peer) + Send> {
    Box::new(move |mut peer| {
        peer.welcome();
        for _ in 0..count {
            for answer in [Answer::Status(Box::new(status())), queue(limit)] {
                let Some(ClientFrame::Request(Request { id, .. })) = peer.receive_or_gone() else { return };
                if !peer.try_reply(id, answer) {
                    return;
                }
            }
        }
    })
}

/// What a terminal shows, until `wanted` is there.
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

#[test]
fn the_terminal_is_given_back() {
    for by_signal in [false, true] {
        // The daemon is started again in between.
        let daemon = Daemon::start([looks(1, 8), looks(usize::MAX, 9)]);
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let before = nix::sys::termios::tcgetattr(&pty.slave).unwrap();
        let mut terminal = File::from(pty.master);
        let mut child = daemon
            .command(&["top"])
            .env("TERM", "xterm")
            .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
            .stdout(Stdio::from(pty.slave.try_clone().unwrap()))
            .stderr(Stdio::from(pty.slave.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let shown = shows(&mut terminal, "RUNNING");
        assert!(shown.contains(ENTER), "{shown:?}");
        // It goes, and is there again: the foot says what keys do.
        shows(&mut terminal, "trying again");
        shows(&mut terminal, "quits");
        if by_signal {
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        } else {
            terminal.write_all(b"q").unwrap();
        }
        shows(&mut terminal, LEAVE);
        assert_eq!(child.wait().unwrap().code(), Some(0), "by signal: {by_signal}");
        let after = nix::sys::termios::tcgetattr(&pty.slave).unwrap();
        assert_eq!((after.local_flags, after.input_flags), (before.local_flags, before.input_flags));
        daemon.end();
    }
}

#[test]
fn without_a_terminal_it_prints_a_page() {
    for args in [&["top"][..], &["top", "--once"]] {
        let ran = Daemon::start([looks(1, 8)]).run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        assert!(ran.stdout.starts_with("zllmd 0.1.0, process 4711, up 1 h 1 min, 5 done"), "{}", ran.stdout);
        assert!(ran.stdout.contains("\nRUNNING 0 of 8 ") && !ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    }
    let home = tempfile::tempdir().unwrap();
    let ran = Ran::new(zllmctl(home.path(), &["top", "--once"]).output().unwrap());
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no daemon listens"), "{}", ran.stderr);
}

#[test]
fn programs_get_an_object_a_line() {
    let ran = Daemon::start([looks(1, 8)]).run(&["top", "--once", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (ran.code, &object["queue"]["running_limit"], &object["status"]["pid"]),
        (Some(0), &8.into(), &4711.into())
    );

    // Over a restart, until nobody reads.
    let daemon = Daemon::start([looks(1, 8), looks(usize::MAX, 9)]);
    let mut child =
        daemon.command(&["top", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for limit in [8, 9, 9] {
        let object: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(object["queue"]["running_limit"], limit);
    }
    drop(lines);
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("not reachable, trying again"), "{}", ran.stderr);
    daemon.end();
}
