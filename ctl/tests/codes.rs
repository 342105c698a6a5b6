//! Exit codes and what is said with them.

mod common;

use common::*;
use zllm_wire::*;

fn fails(code: ErrorCode) -> Ran {
    let fault = Fault { code, message: "the reason".into() };
    Daemon::answering(Op::Unload { model: "m".into() }, Answer::Error(fault)).run(&["unload", "m"])
}

#[test]
fn refused_is_1_and_failed_is_2() {
    for code in [ErrorCode::NotFound, ErrorCode::Invalid, ErrorCode::Draining] {
        let stderr = "zllmctl: the reason\n".into();
        assert_eq!(fails(code), Ran { code: Some(1), stdout: String::new(), stderr }, "{code:?}");
    }
    let busy = fails(ErrorCode::Refused { retry_after_ms: 1500 });
    assert_eq!((busy.code, busy.stderr.as_str()), (Some(1), "zllmctl: the reason; try again in 2 s\n"));
    let busy = fails(ErrorCode::Refused { retry_after_ms: 185_000 });
    assert_eq!(busy.stderr, "zllmctl: the reason; try again in 3 min 5 s\n");
    let failed = fails(ErrorCode::Failed);
    assert_eq!((failed.code, failed.stderr.as_str()), (Some(2), "zllmctl: the reason\n"));
}

#[test]
fn a_job_that_does_not_end_well_is_2() {
    let ends = |event: Option<Event>| {
        Daemon::once(move |mut peer| {
            peer.welcome();
            let (id, _) = peer.load_then_submission(true);
            peer.reply(id, Answer::Accepted { job: job(), known: false });
            peer.events(id, 0, [text("so far")]);
            peer.events(id, 1, event.clone());
            if event.is_some() {
                peer.reply(id, Answer::Done);
            }
        })
        .run(&["run", "m", "hi"])
    };
    let usage = Usage::default();
    for (event, message) in [
        (Some(Event::Failed { message: "out of blocks".into() }), "out of blocks"),
        (
            Some(Event::Finished { reason: FinishReason::Cancelled, choices: vec![], usage }),
            "the job was cancelled",
        ),
        (None, "connection to the daemon lost: the daemon closed it"),
    ] {
        let ran = ends(event);
        let stderr = format!("zllmctl: {message}\n");
        assert_eq!(ran, Ran { code: Some(2), stdout: "so far\n".into(), stderr });
    }
}

#[test]
fn usage_is_64() {
    let home = tempfile::tempdir().unwrap();
    for args in [
        &[][..],
        &["nonsense"],
        &["list", "--nonsense"],
        &["attach"],
        &["attach", "no-job"],
        &["attach", "j-01", "--reconnect-for", "long"],
        &["cancel"],
        &["cancel", "s-1"],
        &["cancel", "j-01", "--session", "s"],
        &["cancel", "j-01", "--batch", "b"],
        &["cancel", "j-01", "--tenant", "t"],
        &["cancel", "--tenant", "t"],
        &["cancel", "--session", "s", "--batch", "b"],
        &["cancel", "--session", "a/s", "--tenant", "b"],
        &["hold"],
        &["hold", "s-1"],
        &["resume", "s-1"],
        &["priority", "j-01"],
        &["priority", "j-01", "urgent"],
        &["drain", "j-01"],
        &["run", "m", "hi", "--class", "urgent"],
        &["run", "m", "hi", "--deadline", "0s"],
        &["submit", "m", "hi", "--max-wait", "soon"],
        &["submit", "m", "hi", "--key", ""],
        &["submit", "m", "hi", "--key", "ä"],
        &["submit", "m", "hi", "--reconnect-for", "5s"],
        &["run", "m", "hi", "--temperature", "warm"],
        &["run", "m", "hi", "--raw", "--system", "s"],
        &["run", "m", "--prompt-file", "/nowhere/to/be/found"],
        &["evict"],
        &["evict", "s", "--all"],
        &["evict", "--all", "--older-than", "2h"],
        &["evict", "--all", "--tenant", "t"],
        &["evict", "--older-than", "2h", "--tenant", "t"],
        &["evict", "--tenant", "t"],
        &["save", "--tenant", "t"],
        &["evict", "--older-than", "2 hours"],
        &["evict", "a/s", "--tenant", "b"],
        &["evict", "s", "--tier", "disk"],
        &["pin"],
        &["pin", "j-01"],
        &["ttl", "s"],
        &["ttl", "s", "never"],
        &["fork", "s"],
        &["fork", "s", "t/new"],
        &["why", "s-1"],
        &["show", "j-01", "--tenant", "t"],
        &["list", "models"],
        &["run", "m", "hi", "--continue", "s", "--system", "be short"],
        &["show", "not an id"],
        &["pull"],
        &["pull", "a/b"],
        &["pull", "m", "--repo", "a/b"],
        &["pull", "m", "--repo", "a/../b", "--filename", "f"],
        &["pull", "m", "--sha256", "12"],
    ] {
        let ran = Ran::new(zllmctl(home.path(), args).output().unwrap());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(64), ""), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.is_empty());
    }
    let ran = Ran::new(zllmctl(home.path(), &["--help"]).output().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("Exit codes"));
}

#[test]
fn a_missing_daemon_is_1_and_named() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("nobody.sock");
    let ran = Ran::new(zllmctl(home.path(), &["status"]).env("ZLLM_SOCKET", &socket).output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(
        ran.stderr.contains(socket.to_str().unwrap()) && ran.stderr.contains("`zllmd`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn daemons_that_speak_otherwise() {
    let says = |frame: ServerFrame| {
        Daemon::once(move |mut peer| {
            peer.receive();
            peer.send(&frame);
        })
        .run(&["status"])
    };
    let refused = says(ServerFrame::Refused { version: 9, message: "only version 9 here".into() });
    assert_eq!((refused.code, refused.stderr.as_str()), (Some(1), "zllmctl: only version 9 here\n"));
    // A daemon that is full: it says so and closes without reading.
    let full = Daemon::once(|mut peer| {
        peer.send(&ServerFrame::Refused { version: VERSION, message: "too many connections".into() });
    })
    .run(&["status"]);
    assert_eq!((full.code, full.stderr.as_str()), (Some(1), "zllmctl: too many connections\n"));
    let newer = says(ServerFrame::Welcome { version: 9, server: "zllmd 9".into(), pid: 1 });
    assert_eq!(newer.code, Some(1));
    assert!(newer.stderr.contains("zllmd 9 speaks protocol version 9"), "{}", newer.stderr);
    let silent = Daemon::once(drop).run(&["status"]);
    assert_eq!(silent.code, Some(2));
    assert!(silent.stderr.contains("no hello on"), "{}", silent.stderr);
    let confused = Daemon::answering(Op::Status, Answer::Done).run(&["status"]);
    assert_eq!(confused.code, Some(2));
    assert!(confused.stderr.contains("answered Done, which is no answer"), "{}", confused.stderr);
    let garbled = Daemon::once(|mut peer| {
        peer.welcome();
        peer.expect(Op::Status);
        peer.garble();
    })
    .run(&["status"]);
    assert_eq!(garbled.code, Some(2));
    assert!(
        garbled.stderr.contains("does not speak this protocol: frame of 4294967295 bytes"),
        "{}",
        garbled.stderr
    );
    let stray = Daemon::once(|mut peer| {
        peer.welcome();
        let id = peer.expect(Op::Status);
        peer.reply(id + 1, Answer::Done);
    });
    assert_eq!(stray.run(&["status"]).code, Some(2));
}
