//! `batch` against a daemon with a queue: one of the tests', which keeps jobs over connections as the real one does.

mod common;

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use zllm_wire::*;

/// What the daemon of a test has acknowledged; it outlives its connections.
#[derive(Default)]
struct Queue {
    jobs: Vec<(Submit, JobState)>,
    /// Jobs that may wait; more are refused.
    capacity: Option<usize>,
    refusals: usize,
    /// Whether the next submission fails.
    ill: bool,
    /// Listings until what waits has ended.
    listings_to_end: u32,
    listings: u32,
    reads: HashMap<JobId, u32>,
    cancelled: Vec<CancelTarget>,
}

/// Submissions that `batch` has in flight at most.
const MAX_SUBMITS: usize = 16;

type Shared = Arc<Mutex<Queue>>;

impl Queue {
    fn id(place: usize) -> JobId {
        JobId::new(format!("j-{place:016x}")).unwrap()
    }

    fn label(&self, place: usize) -> &str {
        self.jobs[place].0.label.as_deref().unwrap()
    }

    fn submit(&mut self, submit: Submit) -> Result<(JobId, bool), Fault> {
        let same_key = |(job, _): &(Submit, JobState)| job.key == submit.key && job.tenant == submit.tenant;
        if let Some(place) = self.jobs.iter().position(same_key) {
            return Ok((Self::id(place), true));
        }
        let fault = |code, message: &str| Fault { code, message: message.into() };
        if submit.label.as_deref() == Some("too-long") {
            return Err(fault(ErrorCode::Invalid, "the prompt is too long"));
        }
        if std::mem::take(&mut self.ill) {
            return Err(fault(ErrorCode::Failed, "the disk is busy"));
        }
        let waiting = self.jobs.iter().filter(|(_, state)| *state == JobState::Queued).count();
        if self.capacity.is_some_and(|capacity| waiting >= capacity) {
            self.refusals += 1;
            return Err(fault(ErrorCode::Refused { retry_after_ms: 200 }, "the queue is full"));
        }
        self.jobs.push((submit, JobState::Queued));
        Ok((Self::id(self.jobs.len() - 1), false))
    }

    fn list(&mut self, after: Option<&JobId>) -> BatchPage {
        self.listings += 1;
        if self.listings > self.listings_to_end {
            for place in 0..self.jobs.len() {
                let ended = match self.label(place).split('-').next() {
                    Some("failing") => JobState::Failed,
                    Some("unlucky") => JobState::Cancelled,
                    _ => JobState::Done,
                };
                self.jobs[place].1 = ended;
            }
        }
        let row = |(place, (submit, state)): (usize, &(Submit, JobState))| BatchJob {
            job: Self::id(place),
            label: submit.label.clone(),
            state: *state,
        };
        let rows = self.jobs.iter().enumerate().map(row);
        let mut jobs: Vec<_> = rows.filter(|row| after.is_none_or(|after| row.job > *after)).collect();
        // Pages of two, so that there are several.
        let more = jobs.len() > 2;
        jobs.truncate(2);
        BatchPage { jobs, more }
    }

    fn events(&mut self, job: &JobId) -> Option<Vec<Event>> {
        *self.reads.entry(job.clone()).or_default() += 1;
        let place = (0..self.jobs.len()).find(|place| Self::id(*place) == *job)?;
        let label = self.label(place).to_owned();
        let end = match self.jobs[place].1 {
            JobState::Failed => Event::Failed { message: "out of time".into() },
            JobState::Cancelled => {
                let reason = FinishReason::Cancelled;
                Event::Finished {
                    reason,
                    choices: vec![ChoiceEnd { reason, stop: None }],
                    usage: Usage::default(),
                }
            }
            JobState::Done => finished(),
            JobState::Queued | JobState::Running => panic!("{job} is read before it has ended"),
        };
        (label != "forgotten")
            .then(|| vec![Event::Queued { position: 1 }, text("answer to "), text(&label), end])
    }

    fn answer(&mut self, peer: &mut Peer, request: Request) -> bool {
        let Request { id, body } = request;
        let last = match body {
            Op::Status => Answer::Status(Box::new(Status { models: vec![model("m", true)], ..status() })),
            Op::Submit(submit) => match self.submit(*submit) {
                Ok((job, known)) => {
                    if !peer.try_reply(id, Answer::Accepted { job, known }) {
                        return false;
                    }
                    Answer::Done
                }
                Err(fault) => Answer::Error(fault),
            },
            Op::BatchJobs { batch, after, tenant } => {
                assert!(
                    self.jobs
                        .iter()
                        .all(|(job, _)| job.batch.as_ref() == Some(&batch) && job.tenant == tenant)
                );
                Answer::BatchJobs(self.list(after.as_ref()))
            }
            Op::Attach { job, from: 0 } => match self.events(&job) {
                Some(events) => {
                    for (offset, event) in (0..).zip(events) {
                        if !peer.try_reply(id, Answer::Event { offset, event }) {
                            return false;
                        }
                    }
                    Answer::Done
                }
                None => Answer::Error(Fault { code: ErrorCode::NotFound, message: "no such job".into() }),
            },
            Op::Cancel { target } => {
                self.cancelled.push(target);
                Answer::Cancelled { jobs: 3 }
            }
            other => panic!("{other:?} was not expected"),
        };
        peer.try_reply(id, last)
    }
}

/// Serves one connection until the client has gone, or `stop` says that the daemon dies.
fn serves(queue: &Shared, stop: impl Fn(&Queue) -> bool + Send + 'static) -> Box<dyn FnOnce(Peer) + Send> {
    let queue = queue.clone();
    Box::new(move |mut peer| {
        peer.welcome();
        while let Some(ClientFrame::Request(request)) = peer.receive_or_gone() {
            let mut queue = queue.lock().unwrap();
            if !queue.answer(&mut peer, request) || stop(&queue) {
                return;
            }
        }
    })
}

fn always(queue: &Shared) -> Box<dyn FnOnce(Peer) + Send> {
    serves(queue, |_| false)
}

fn request(custom_id: &str) -> String {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": custom_id}], "max_tokens": 7});
    let line = json!({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body});
    format!("{line}\n")
}

/// Writes a batch's file.
fn file(dir: &Path, custom_ids: &[&str]) -> PathBuf {
    let path = dir.join("in.jsonl");
    fs::write(&path, custom_ids.iter().map(|id| request(id)).collect::<String>()).unwrap();
    path
}

fn batch(daemon: &Daemon, args: &[&str]) -> Child {
    let mut command = daemon.command(args);
    command.current_dir(daemon.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ran(daemon: &Daemon, args: &[&str]) -> Ran {
    Ran::new(batch(daemon, args).wait_with_output().unwrap())
}

fn lines(path: PathBuf) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn custom_ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["custom_id"].as_str().unwrap()).collect()
}

#[test]
fn a_batch_from_its_lines_to_its_files() {
    let queue = Shared::default();
    let daemon = Daemon::start([always(&queue)]);
    file(daemon.dir.path(), &["a", "failing", "b", "too-long", "unlucky", "forgotten", "c"]);
    let ran = ran(&daemon, &["batch", "in.jsonl", "--id", "mine", "--tenant", "acme", "--json"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(
        ran.stderr.ends_with("zllmctl: 4 of 7 requests failed; in.errors.jsonl says why\n"),
        "{}",
        ran.stderr
    );
    let summary: Value = serde_json::from_str(&ran.stdout).unwrap();
    let wanted = json!({
        "batch": "mine", "total": 7, "completed": 3, "failed": 4, "generated_tokens": 3 * 46,
        "output": "in.output.jsonl", "errors": "in.errors.jsonl",
    });
    assert_eq!(summary, wanted);

    let output = lines(daemon.dir.path().join("in.output.jsonl"));
    assert_eq!(custom_ids(&output), ["a", "b", "c"]);
    let line = &output[1];
    assert!(line["id"].as_str().unwrap().starts_with("batch_req_") && line["error"].is_null());
    assert_eq!(
        (&line["response"]["status_code"], &line["response"]["request_id"]),
        (&json!(200), &json!(Queue::id(2)))
    );
    let body = &line["response"]["body"];
    assert_eq!(body["choices"][0]["message"]["content"], "answer to b");
    assert_eq!(body["usage"]["total_tokens"], 23 + 46);

    let errors = lines(daemon.dir.path().join("in.errors.jsonl"));
    let told: Vec<_> = errors.iter().map(|line| line["error"]["code"].as_str().unwrap()).collect();
    assert_eq!(custom_ids(&errors), ["failing", "too-long", "unlucky", "forgotten"]);
    assert_eq!(told, ["server_error", "invalid_request", "batch_cancelled", "batch_expired"]);
    assert!(errors.iter().all(|line| line["response"].is_null()));
    assert_eq!(errors[0]["error"]["message"], "out of time");
    assert_eq!(errors[1]["error"]["message"], "the prompt is too long");
    daemon.end();

    let queue = queue.lock().unwrap();
    let submit = &queue.jobs[0].0;
    assert_eq!((submit.class, submit.detached, submit.stream), (Class::Batch, true, false));
    assert_eq!((submit.label.as_deref(), submit.params.max_tokens), (Some("a"), Some(7)));
    assert_eq!(submit.tenant, Some(Tenant::new("acme").unwrap()));
    assert!(submit.key.as_ref().unwrap().as_str().starts_with("mine/1-"), "{:?}", submit.key);
    assert!(queue.reads.values().all(|reads| *reads == 1), "a result was read twice: {:?}", queue.reads);
}

#[test]
fn a_full_queue_is_waited_for() {
    let queue = Shared::default();
    queue.lock().unwrap().capacity = Some(3);
    queue.lock().unwrap().ill = true;
    let daemon = Daemon::start([always(&queue)]);
    let ids: Vec<String> = (0..12).map(|number| format!("r{number:02}")).collect();
    file(daemon.dir.path(), &ids.iter().map(String::as_str).collect::<Vec<_>>());
    let ran = ran(&daemon, &["batch", "in.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("\ndone       12 of 12\n"), "{}", ran.stdout);
    assert_eq!(custom_ids(&lines(daemon.dir.path().join("in.output.jsonl"))), ids);
    daemon.end();
    // The queue gets room once a second, four times, and each refusal is good for 200 ms: five tries of one request, and a
    // few that find the room taken.
    let queue = queue.lock().unwrap();
    assert!(queue.refusals < MAX_SUBMITS + 4 * 12, "{} refusals", queue.refusals);
    assert_eq!(queue.jobs.len(), 12);
}

#[test]
fn a_daemon_that_is_started_again_is_waited_for() {
    let queue = Shared::default();
    queue.lock().unwrap().listings_to_end = 2;
    // It dies with answers under way, then while results are read, and is then stopped.
    let dies_early = serves(&queue, |queue| queue.jobs.len() == 4);
    let dies_late = serves(&queue, |queue| queue.reads.len() == 2);
    let stops: Box<dyn FnOnce(Peer) + Send> = Box::new(|mut peer| {
        peer.welcome();
        let Some(ClientFrame::Request(request)) = peer.receive() else { panic!("no request") };
        let fault = Fault { code: ErrorCode::Draining, message: "stopping".into() };
        peer.reply(request.id, Answer::Error(fault));
    });
    let daemon = Daemon::start([dies_early, dies_late, stops, always(&queue)]);
    let ids = ["a", "b", "c", "d", "e", "f"];
    file(daemon.dir.path(), &ids);
    let ran = ran(&daemon, &["batch", "in.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("the daemon is not there (") && ran.stderr.contains("waiting for it"),
        "{}",
        ran.stderr
    );
    assert_eq!(custom_ids(&lines(daemon.dir.path().join("in.output.jsonl"))), ids);
    daemon.end();
    assert_eq!(queue.lock().unwrap().jobs.len(), ids.len(), "a request became two jobs");
}

#[test]
fn what_was_interrupted_or_killed_goes_on() {
    let queue = Shared::default();
    queue.lock().unwrap().listings_to_end = u32::MAX;
    let daemon = Daemon::start([always(&queue), always(&queue), always(&queue), always(&queue)]);
    let ids = ["a", "b", "c"];
    file(daemon.dir.path(), &ids);
    let wait_for = |what: &dyn Fn(&Queue) -> bool| {
        while !what(&queue.lock().unwrap()) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };

    // Ctrl-C: the jobs go on.
    let child = batch(&daemon, &["batch", "in.jsonl"]);
    wait_for(&|queue| queue.listings > 0);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ran_first = Ran::new(child.wait_with_output().unwrap());
    assert_eq!((ran_first.code, ran_first.stdout.as_str()), (Some(130), ""), "{}", ran_first.stderr);
    assert!(
        ran_first.stderr.contains("all requests are jobs, which go on; the same command again"),
        "{}",
        ran_first.stderr
    );
    assert!(ran_first.stderr.contains("`zllmctl batch --cancel b-"), "{}", ran_first.stderr);

    // Killed when it has a result: it is kept, and not asked for again.
    let partial = daemon.dir.path().join("in.output.jsonl.partial");
    queue.lock().unwrap().jobs[1].1 = JobState::Done;
    let mut child = batch(&daemon, &["batch", "in.jsonl"]);
    while fs::metadata(&partial).map_or(0, |file| file.len()) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(custom_ids(&lines(partial.clone())), ["b"]);

    queue.lock().unwrap().listings_to_end = 0;
    let ran_third = ran(&daemon, &["batch", "in.jsonl"]);
    assert_eq!(ran_third.code, Some(0), "{}", ran_third.stderr);
    assert_eq!(custom_ids(&lines(daemon.dir.path().join("in.output.jsonl"))), ids);
    assert!(!partial.exists());

    // All is there: nothing is done again.
    let before = fs::read(daemon.dir.path().join("in.output.jsonl")).unwrap();
    assert_eq!(ran(&daemon, &["batch", "in.jsonl"]).code, Some(0));
    assert_eq!(fs::read(daemon.dir.path().join("in.output.jsonl")).unwrap(), before);
    daemon.end();
    let queue = queue.lock().unwrap();
    assert_eq!(queue.jobs.len(), ids.len());
    assert!(queue.reads.values().all(|reads| *reads == 1), "{:?}", queue.reads);
}

#[test]
fn detached_it_returns_when_all_are_jobs() {
    let queue = Shared::default();
    queue.lock().unwrap().listings_to_end = u32::MAX;
    let daemon = Daemon::start([always(&queue)]);
    file(daemon.dir.path(), &["a", "b"]);
    let ran = ran(&daemon, &["batch", "in.jsonl", "--id", "mine", "--detach"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "mine\n"), "{}", ran.stderr);
    daemon.end();
    assert_eq!(queue.lock().unwrap().jobs.len(), 2);
}

#[test]
fn cancelling_by_file_and_by_id() {
    let queue = Shared::default();
    let daemon = Daemon::start([always(&queue), always(&queue)]);
    fs::write(daemon.dir.path().join("in.jsonl"), "").unwrap();
    let by_file = ran(&daemon, &["batch", "--cancel", "in.jsonl"]);
    let by_id = ran(&daemon, &["batch", "--cancel", "b-7", "--tenant", "t", "--json"]);
    assert_eq!(
        (by_file.code, by_file.stdout.as_str()),
        (Some(0), "3 jobs of batch b-e3b0c44298fc1c14 cancelled\n")
    );
    assert_eq!((by_id.code, by_id.stdout.as_str()), (Some(0), "{\"batch\":\"b-7\",\"cancelled\":3}\n"));
    daemon.end();
    let target = |tenant, batch| CancelTarget::Batch { tenant, batch: BatchId::new(batch).unwrap() };
    let wanted = [target(None, "b-e3b0c44298fc1c14"), target(Some(Tenant::new("t").unwrap()), "b-7")];
    assert_eq!(queue.lock().unwrap().cancelled, wanted);
}

#[test]
fn nothing_is_sent_when_something_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &["a", "a"]);
    let nobody = dir.path().join("nobody.sock");
    let refused = |args: &[&str]| {
        let output =
            zllmctl(dir.path(), args).current_dir(dir.path()).env("ZLLM_SOCKET", &nobody).output().unwrap();
        let ran = Ran::new(output);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        ran.stderr
    };
    let faults = refused(&["batch", "in.jsonl"]);
    let wanted = "zllmctl: nothing was sent, because in.jsonl has faults:\n  line 2: custom_id \"a\" is that of line 1 too\n";
    assert_eq!(faults, wanted);
    assert!(refused(&["batch", "missing.jsonl"]).contains("cannot read missing.jsonl"));
    fs::write(&path, b"\xff").unwrap();
    assert!(refused(&["batch", "in.jsonl"]).contains("byte 0 is not UTF-8"));
    fs::write(&path, "x\n".repeat(30)).unwrap();
    assert!(
        refused(&["batch", "in.jsonl"])
            .ends_with("\n  line 20: not JSON: expected value at line 1 column 1\n  and 10 more\n")
    );
    assert!(refused(&["batch", "--cancel", "no such batch"]).contains("neither a file nor a batch's id"));

    let usage = |args: &[&str]| {
        let ran = Ran::new(zllmctl(dir.path(), args).current_dir(dir.path()).output().unwrap());
        assert_eq!(ran.code, Some(64), "{args:?}: {}", ran.stderr);
    };
    file(dir.path(), &["a"]);
    usage(&["batch", "in.jsonl", "--output", "x", "--errors", "x"]);
    usage(&["batch", "in.jsonl", "--output", "in.jsonl"]);
    usage(&["batch", "in.jsonl", "--cancel", "--detach"]);
    usage(&["batch", "in.jsonl", "--id", "not an id"]);
}

#[test]
fn a_daemon_that_cannot_serve_it_gets_nothing() {
    let answers = |status: Status| {
        let daemon = Daemon::once(move |mut peer| {
            peer.welcome();
            let id = peer.expect(Op::Status);
            peer.reply(id, Answer::Status(Box::new(status)));
            assert!(peer.client_leaves());
        });
        file(daemon.dir.path(), &["a"]);
        let ran = ran(&daemon, &["batch", "in.jsonl"]);
        let names: Vec<_> =
            fs::read_dir(daemon.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "socket and input, but {names:?}");
        daemon.end();
        assert_eq!(ran.code, Some(1));
        ran.stderr
    };
    let unknown = answers(Status { models: vec![model("n", true)], ..status() });
    assert_eq!(unknown, "zllmctl: nothing was sent: the daemon has no model m; it has n\n");
    let fault = Some("the disk is full".into());
    let broken = answers(Status { jobs_durable: false, jobs_fault: fault, ..status() });
    assert!(broken.contains("no queue that lasts, which a batch needs: the disk is full"), "{broken}");
}

#[test]
fn one_command_runs_a_batch() {
    let queue = Shared::default();
    let daemon = Daemon::start([always(&queue)]);
    file(daemon.dir.path(), &["a"]);
    let lock = File::create(daemon.dir.path().join("in.output.jsonl.partial")).unwrap();
    lock.try_lock().unwrap();
    let ran = ran(&daemon, &["batch", "in.jsonl"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("another zllmctl writes to in.output.jsonl.partial"), "{}", ran.stderr);
    daemon.end();
    assert!(queue.lock().unwrap().jobs.is_empty());
}
