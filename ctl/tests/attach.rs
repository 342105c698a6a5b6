//! Reading a job on: from an offset, over lost connections, over a daemon that is started again.

mod common;

use common::*;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{fs, process::Stdio, thread, time::Duration};
use zllm_wire::*;

type Part = Box<dyn FnOnce(Peer) + Send>;

/// Sends events to who attaches from `from` on. The event before is sent again, as a daemon that counts coarsely might.
fn attached(from: u64, events: Vec<Event>, end: Option<Answer>) -> Part {
    Box::new(move |mut peer| {
        peer.welcome();
        let id = peer.expect(Op::Attach { job: job(), from });
        peer.events(id, from.saturating_sub(1), events);
        if let Some(end) = end {
            peer.reply(id, end);
        }
    })
}

fn done() -> Option<Answer> {
    Some(Answer::Done)
}

fn fault(code: ErrorCode, message: &str) -> Option<Answer> {
    Some(Answer::Error(Fault { code, message: message.into() }))
}

/// What is said once when the events stop before `next`.
fn note(why: &str, limit: &str, next: u64) -> String {
    format!("connection to the daemon lost: {why}; trying for {limit} to read on from event {next}\n")
}

const CLOSED: &str = "the daemon closed it";

#[test]
fn attach_reads_on_after_lost_connections() {
    let daemon = Daemon::start([
        attached(0, vec![text("one "), text("two ")], None),
        attached(2, vec![text("two "), text("three ")], None),
        Box::new(|mut peer| peer.welcome()),
        attached(3, vec![text("three "), text("four"), finished()], done()),
    ]);
    let ran = daemon.run(&["attach", "j-01"]);
    let stderr = note(CLOSED, "1 min 0 s", 2) + &note(CLOSED, "1 min 0 s", 3) + STATS;
    assert_eq!(ran, Ran { code: Some(0), stdout: "one two three four\n".into(), stderr });

    let ran = Daemon::start([attached(5, vec![text("-"), text("five"), finished()], done())])
        .run(&["attach", "j-01", "--from", "5"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "five\n"));

    let ran = Daemon::start([attached(9, vec![], done())]).run(&["attach", "j-01", "--from", "9"]);
    let stderr = "zllmctl: the job has ended and its log has no event 9\n".into();
    assert_eq!(ran, Ran { code: Some(1), stdout: String::new(), stderr });
}

#[test]
fn a_daemon_that_is_started_again_goes_on_where_the_first_was() {
    let refused: Part = Box::new(|mut peer| {
        peer.receive();
        peer.send(&ServerFrame::Refused { version: VERSION, message: "starting".into() });
    });
    let daemon = Daemon::start([
        // It stops in good order, before the job has ended.
        attached(0, vec![text("one ")], done()),
        refused,
        attached(1, vec![], fault(ErrorCode::Refused { retry_after_ms: 10 }, "not yet")),
        attached(1, vec![text("one "), text("two "), finished()], done()),
    ]);
    let mut child =
        daemon.command(&["attach", "j-01"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "one ");
    // For a while there is no socket.
    let away = daemon.dir.path().join("away");
    fs::rename(&daemon.socket, &away).unwrap();
    thread::sleep(Duration::from_millis(300));
    fs::rename(&away, &daemon.socket).unwrap();
    let ran = Ran::new(child.wait_with_output().unwrap());
    daemon.end();
    let stderr = note("the daemon ended the stream", "1 min 0 s", 1) + STATS;
    assert_eq!(ran, Ran { code: Some(0), stdout: "two \n".into(), stderr });
}

#[test]
fn submit_reads_on_too() {
    let submitted: Part = Box::new(|mut peer| {
        peer.welcome();
        let id = peer.expect(Op::Models);
        peer.reply(id, Answer::Models(vec![model("m", true)]));
        let Request { id, body: Op::Submit(_) } = peer.request() else { panic!("no submission") };
        peer.reply(id, Answer::Accepted { job: job(), known: true });
        peer.events(id, 0, [text("begun")]);
    });
    let rest = attached(1, vec![text("begun"), text(", ended"), finished()], done());
    let args = ["submit", "m", "hi", "--wait", "--reconnect-for", "5s"];
    let ran = Daemon::start([submitted, rest]).run(&args);
    let stderr = format!("submitted before with this key\njob j-01\n{}{STATS}", note(CLOSED, "5 s", 1));
    assert_eq!(ran, Ran { code: Some(0), stdout: "begun, ended\n".into(), stderr });
}

#[test]
fn a_job_that_did_not_outlive_the_daemon_is_not_waited_for() {
    let ran = Daemon::start([
        attached(0, vec![text("begun")], None),
        attached(1, vec![], fault(ErrorCode::NotFound, "there is no job j-01")),
    ])
    .run(&["attach", "j-01"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), "begun\n"));
    let end = "zllmctl: the job did not outlive the daemon: there is no job j-01\n";
    assert!(ran.stderr.ends_with(end), "{}", ran.stderr);
}

#[test]
fn a_daemon_that_stays_away_is_given_up() {
    let attach = |limit: &str| {
        let daemon = Daemon::start([attached(0, vec![text("begun")], None)]);
        let output = daemon.command(&["attach", "j-01", "--reconnect-for", limit]).output().unwrap();
        daemon.end();
        Ran::new(output)
    };
    let ran = attach("1s");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), "begun\n"));
    assert!(ran.stderr.starts_with(&note(CLOSED, "1 s", 1)), "{}", ran.stderr);
    let end = "; gave up after 1 s; `zllmctl attach j-01 --from 1` reads on from here\n";
    assert!(ran.stderr.ends_with(end), "{}", ran.stderr);

    let ran = attach("0s");
    let stderr = "zllmctl: connection to the daemon lost: the daemon closed it; `zllmctl attach j-01 --from 1` reads on \
                  from here\n";
    assert_eq!(ran, Ran { code: Some(2), stdout: "begun\n".into(), stderr: stderr.into() });
}

#[test]
fn ctrl_c_ends_the_wait_for_a_daemon() {
    let daemon = Daemon::start([attached(0, vec![text("begun")], None)]);
    let mut child =
        daemon.command(&["attach", "j-01"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    read_until(child.stderr.as_mut().unwrap(), "from event 1\n");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ran = Ran::new(child.wait_with_output().unwrap());
    daemon.end();
    let stderr = "job j-01 goes on; `zllmctl attach j-01 --from 1` reads on here\n".into();
    assert_eq!(ran, Ran { code: Some(130), stdout: "begun\n".into(), stderr });
}
