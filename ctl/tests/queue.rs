//! The queue as people and programs read it, what they have it do, and how a job's life is told.

mod common;

use common::*;
use zllm_wire::*;

fn id(number: u64) -> JobId {
    JobId::new(format!("j-{number:016x}")).unwrap()
}

fn waiting(position: u32, class: Class, level: u8, why: WaitReason) -> WaitingJob {
    WaitingJob {
        job: id(0x18f_0000_0000_0100 + u64::from(position)),
        label: Some("summary".into()),
        tenant: Some(Tenant::new("acme").unwrap()),
        session: None,
        model: "m".into(),
        class,
        level,
        position,
        waited_ms: 4_200 * u64::from(position + 1),
        prompt_tokens: 1200,
        max_tokens: 300,
        generated_tokens: 17,
        why,
        starts_in_ms: (position < 3).then_some(2_000),
    }
}

fn running(number: u64, class: Class, phase: Phase) -> RunningJob {
    RunningJob {
        job: id(0x18f_0000_0000_0001 + number),
        label: None,
        tenant: None,
        model: "m".into(),
        class,
        phase,
        generated_tokens: 123,
        max_tokens: 1024,
        ticket_tokens: 131_072,
        ticket_bytes: 900 << 20,
        since_ms: 65_000,
    }
}

fn report() -> QueueReport {
    let model = WaitReason::Model { state: "loading".into() };
    let whys = [
        (Class::Interactive, 0, WaitReason::Places),
        (Class::Normal, 1, WaitReason::Turn),
        (Class::Batch, 1, WaitReason::Parked),
        (Class::Batch, 2, WaitReason::Memory { blocks: 40, free: 12 }),
        (Class::Batch, 2, WaitReason::Reading),
        (Class::Batch, 2, model),
        (Class::Batch, 2, WaitReason::Held),
        (Class::Batch, 2, WaitReason::Draining),
        (Class::Batch, 2, WaitReason::Storing),
    ];
    let whys = (0..).zip(whys).map(|(position, (class, level, why))| waiting(position, class, level, why));
    let load = |jobs| QueueLoad { jobs, tokens: 1500 * jobs, bytes: 6000 * jobs };
    let limit = QueueLoad { jobs: 512, tokens: 1 << 20, bytes: 64 << 20 };
    let class = |class, jobs| ClassLoad { class, queued: load(jobs), limit };
    let tenant = |name: Option<&str>, jobs| TenantLoad {
        tenant: name.map(|name| Tenant::new(name).unwrap()),
        queued: load(jobs),
        limit,
        running_jobs: 2,
        served_tokens: 123_456,
    };
    QueueReport {
        draining: false,
        waiting: whys.collect(),
        running: vec![
            running(0, Class::Interactive, Phase::Prefill { done: 120_000, total: 131_072 }),
            running(1, Class::Batch, Phase::Decode),
        ],
        classes: vec![class(Class::Interactive, 1), class(Class::Normal, 1), class(Class::Batch, 7)],
        tenants: vec![tenant(None, 0), tenant(Some("a-tenant-with-a-long-name"), 9)],
        running_limit: 2,
    }
}

fn says(op: Op, answer: Answer, args: &[&str]) -> String {
    let ran = Daemon::answering(op, answer).run(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
    ran.stdout
}

fn page(report: QueueReport, args: &[&str]) -> String {
    says(Op::Queue, Answer::Queue(Box::new(report)), args)
}

#[test]
fn a_page_of_the_queue() {
    let wanted = "\
2 of at most 2 running, 9 waiting

RUNNING             CLASS        AT                     ROOM       KV    FOR
j-018f000000000001  interactive  prefill 120000/131072  131k  900 MiB  1 min
j-018f000000000002  batch        decode 123/1024        131k  900 MiB  1 min

#  WAITING             CLASS          AGE  TOKENS  STARTS  WHY
1  j-018f000000000100  interactive  4.2 s   1.50k   2.0 s  all places are taken
2  j-018f000000000101  normal       8.4 s   1.50k   2.0 s  1 before it
3  j-018f000000000102  batch/1       13 s   1.50k   2.0 s  parked at token 17
4  j-018f000000000103  batch         17 s   1.50k       -  40 blocks, 12 free
5  j-018f000000000104  batch         21 s   1.50k       -  reading its KV
6  j-018f000000000105  batch         25 s   1.50k       -  model: loading
7  j-018f000000000106  batch         29 s   1.50k       -  held
8  j-018f000000000107  batch         34 s   1.50k       -  draining
9  j-018f000000000108  batch         38 s   1.50k       -  being stored
/0, /1: has waited so long that it counts as interactive (0) or normal (1)

CLASS            JOBS          TOKENS                MEMORY
interactive  1 of 512  1.50k of 1.05M   5.9 KiB of 64.0 MiB
normal       1 of 512  1.50k of 1.05M   5.9 KiB of 64.0 MiB
batch        7 of 512  10.5k of 1.05M  41.0 KiB of 64.0 MiB

TENANT              JOBS          TOKENS                MEMORY  RUNNING  SERVED
-               0 of 512      0 of 1.05M       0 B of 64.0 MiB        2    123k
a-tenant-with…  9 of 512  13.5k of 1.05M  52.7 KiB of 64.0 MiB        2    123k
";
    assert_eq!(page(report(), &["queue"]), wanted);
    let json: serde_json::Value = serde_json::from_str(&page(report(), &["queue", "--json"])).unwrap();
    assert_eq!(json["waiting"][3]["why"]["memory"]["blocks"], 40);
    assert_eq!(json["waiting"][0]["why"], "places");
    assert_eq!(json["running"][0]["phase"]["prefill"]["done"], 120_000);
}

#[test]
fn a_long_queue_is_cut_and_fits_80_columns() {
    let mut long = report();
    let state = "failed: a file that is not there and whose name is long".to_owned();
    let last = waiting(0, Class::Interactive, 0, WaitReason::Model { state });
    long.waiting = (0..400).map(|position| WaitingJob { position, ..last.clone() }).collect();
    long.classes[2].queued.jobs = 5000;
    long.draining = true;
    for args in [&["queue"][..], &["queue", "--all"]] {
        let page = page(long.clone(), args);
        let longest = page.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{longest:?} characters:\n{page}");
        assert!(page.contains("waiting; draining: nothing that waits starts\n"), "{page}");
        let rows = page.matches("model: ").count();
        let more = page.lines().find(|line| line.starts_with("and ")).unwrap();
        match args.len() {
            1 => assert_eq!((rows, more), (20, "and 4982 more; --all shows them")),
            _ => assert_eq!((rows, more), (400, "and 4602 more")),
        }
        assert!(!page.contains("has waited so long"), "{page}");
    }
    let empty = QueueReport { waiting: vec![], running: vec![], tenants: vec![], ..report() };
    assert!(page(empty, &["queue"]).starts_with("0 of at most 2 running, 9 waiting\n\nCLASS"));
}

#[test]
fn orders() {
    let done = || Answer::Done;
    let hold = || Op::Hold { job: job() };
    let told = "j-01 held; `zllmctl resume j-01` releases it\n";
    assert_eq!(says(hold(), done(), &["hold", "j-01"]), told);
    assert_eq!(says(hold(), done(), &["hold", "j-01", "--json"]), "{\"held\":\"j-01\"}\n");
    let release = || Op::Release { job: job() };
    assert_eq!(says(release(), done(), &["resume", "j-01"]), "j-01 released\n");
    assert_eq!(says(release(), done(), &["resume", "j-01", "--json"]), "{\"released\":\"j-01\"}\n");
    assert_eq!(says(Op::Drain, done(), &["drain"]), "draining; `zllmctl resume` ends it\n");
    assert_eq!(says(Op::Drain, done(), &["drain", "--json"]), "{\"draining\":true}\n");
    assert_eq!(says(Op::Resume, done(), &["resume"]), "not draining\n");
    assert_eq!(says(Op::Resume, done(), &["resume", "--json"]), "{\"draining\":false}\n");
    let class = |class| Op::SetClass { job: job(), class };
    assert_eq!(says(class(Class::Batch), done(), &["priority", "j-01", "batch"]), "j-01 is batch now\n");
    let json = says(class(Class::Interactive), done(), &["priority", "j-01", "interactive", "--json"]);
    assert_eq!(json, "{\"job\":\"j-01\",\"class\":\"interactive\"}\n");
    let no_job = Answer::Error(Fault { code: ErrorCode::NotFound, message: "there is no job j-01".into() });
    let ran = Daemon::answering(hold(), no_job).run(&["hold", "j-01"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "zllmctl: there is no job j-01\n"));
}

#[test]
fn what_is_cancelled() {
    let cancelled = |jobs| Answer::Cancelled { jobs };
    let one = || Op::Cancel { target: CancelTarget::Job(job()) };
    assert_eq!(says(one(), cancelled(1), &["cancel", "j-01"]), "j-01 cancelled\n");
    assert_eq!(says(one(), cancelled(0), &["cancel", "j-01"]), "j-01 had ended\n");
    let json = "{\"cancelled\":\"j-01\",\"jobs\":1}\n";
    assert_eq!(says(one(), cancelled(1), &["cancel", "j-01", "--json"]), json);
    let tenant = || Some(Tenant::new("t").unwrap());
    let session = || SessionRef { tenant: tenant(), id: SessionId::new("s").unwrap() };
    let of_session = || Op::Cancel { target: CancelTarget::Session(session()) };
    let told = "1 job of session t/s cancelled\n";
    assert_eq!(says(of_session(), cancelled(1), &["cancel", "--session", "t/s"]), told);
    let args = ["cancel", "--session", "s", "--tenant", "t", "--json"];
    let json = "{\"cancelled\":{\"tenant\":\"t\",\"id\":\"s\"},\"jobs\":0}\n";
    assert_eq!(says(of_session(), cancelled(0), &args), json);
    let of_batch = |tenant| {
        let batch = BatchId::new("nightly").unwrap();
        Op::Cancel { target: CancelTarget::Batch { tenant, batch } }
    };
    let told = "50 jobs of batch nightly cancelled\n";
    assert_eq!(says(of_batch(None), cancelled(50), &["cancel", "--batch", "nightly"]), told);
    let args = ["cancel", "--batch", "nightly", "--tenant", "t"];
    let told = "50 jobs of batch t/nightly cancelled\n";
    assert_eq!(says(of_batch(tenant()), cancelled(50), &args), told);
}

/// A job that went through everything.
fn eventful() -> JobDetail {
    use MomentKind::*;
    let cached_by_tier = TokenTiers { device: 10, ram: 5, ssd: 1 };
    let moments = [
        (0.0, Queued),
        (2.34, Stored),
        (10.0, Held),
        (11.0, Released),
        (12.0, PrefixSearched),
        (15.5, Restored { ram: 5, ssd: 1 }),
        (16.0, Started { cached_tokens: 16 }),
        (116.0, PrefillDone),
        (120.0, FirstToken),
        (500.0, Parked),
        (900.0, Restarted),
        (1000.0, Resumed),
        (61_234.56, Ended),
    ];
    JobDetail {
        info: JobInfo {
            id: job(),
            label: None,
            model: "m".into(),
            tenant: None,
            session: None,
            state: JobState::Done,
            class: Class::Batch,
            held: false,
            batch: Some(BatchId::new("nightly").unwrap()),
            detached: true,
            queue_position: 0,
            prompt_tokens: 23,
            cached_tokens: 16,
            cached_by_tier,
            generated_tokens: 46,
            bytes: TierBytes::default(),
            age_ms: 65_000,
            idle_ms: 5_000,
        },
        params: GenerationParams::default(),
        choices: vec![ChoiceDetail { text: "text".into(), end: None }],
        events: 9,
        finish: None,
        usage: None,
        error: None,
        attempts: 2,
        deadline_ms: Some(540_000),
        max_wait_ms: Some(29_001),
        key: Some(IdempotencyKey::new("my key").unwrap()),
        timeline: moments.map(|(at_ms, what)| Moment { at_ms, what }).to_vec(),
    }
}

#[test]
fn the_life_of_a_job() {
    let detail = eventful();
    let wanted = "\
job           j-01
model         m
batch         nightly
key           my key
class         batch
state         done
submitted     1 min 5 s ago
must start    within 30 s
must end      within 9 min 0 s
attempts      2
last use      5 s ago
KV on device  0 B
KV in RAM     0 B
KV on SSD     0 B
events        9
tokens        prompt 23 (16 cached: 10 on device, 5 in RAM, 1 on SSD), generated 46

    0.0 ms  queued
    2.3 ms  stored on disk
   10.0 ms  held
   11.0 ms  released
   12.0 ms  prefix looked up: of 23 tokens 16 cached: 10 on device, 5 in RAM, 1 on SSD
   15.5 ms  restored: 5 tokens from RAM, 1 token from SSD
   16.0 ms  prefill of 7 tokens begun
  116.0 ms  prefill done
  120.0 ms  first token
  500.0 ms  parked, its KV kept
  900.0 ms  daemon restarted
 1000.0 ms  resumed
61234.6 ms  ended

text
";
    let op = || Op::Show(ShowTarget::Job(job()));
    let job = |state| {
        let info = JobInfo { state, ..detail.info.clone() };
        Answer::Job(Box::new(JobDetail { info, ..detail.clone() }))
    };
    assert_eq!(says(op(), job(JobState::Done), &["show", "j-01"]), wanted);
    for (state, last) in [(JobState::Failed, "failed"), (JobState::Cancelled, "cancelled")] {
        let page = says(op(), job(state), &["show", "j-01"]);
        assert!(page.contains(&format!("61234.6 ms  {last}\n")), "{page}");
    }
}

#[test]
fn how_urgent_a_job_is_and_how_long_it_may_take() {
    let submits = |check: fn(&Submit)| {
        Daemon::once(move |mut peer| {
            peer.welcome();
            let id = peer.expect(Op::Models);
            peer.reply(id, Answer::Models(vec![model("m", true)]));
            let Request { id, body: Op::Submit(submit) } = peer.request() else { panic!("no submission") };
            check(&submit);
            peer.reply(id, Answer::Accepted { job: job(), known: submit.key.is_some() });
            peer.try_reply(id, Answer::Done);
        })
    };
    let plain = submits(|submit| {
        assert_eq!((submit.class, submit.deadline_ms, submit.max_wait_ms), (Class::Normal, None, None));
        assert_eq!((&submit.key, &submit.batch), (&None, &None));
    });
    assert_eq!(plain.run(&["submit", "m", "hi"]).code, Some(0));
    let all = submits(|submit| {
        assert_eq!((submit.class, submit.deadline_ms), (Class::Batch, Some(600_000)));
        assert_eq!(submit.max_wait_ms, Some(30_000));
        assert_eq!(submit.key.as_ref().map(IdempotencyKey::as_str), Some("k 1"));
        assert_eq!(submit.batch.as_ref().map(BatchId::as_str), Some("nightly"));
    });
    let args =
        ["submit", "m", "hi", "--class", "batch", "--deadline", "10m", "--max-wait", "30s", "--key", "k 1"];
    let ran = all.run(&[&args[..], &["--batch", "nightly"]].concat());
    let stderr = "submitted before with this key\n".into();
    assert_eq!(ran, Ran { code: Some(0), stdout: "j-01\n".into(), stderr });

    let runs = |check: fn(&Submit)| {
        Daemon::once(move |mut peer| {
            peer.welcome();
            let (id, submit) = peer.load_then_submission(true);
            check(&submit);
            let message = "1500 tokens wait, at most 1000 may".into();
            peer.reply(
                id,
                Answer::Error(Fault { code: ErrorCode::Refused { retry_after_ms: 61_000 }, message }),
            );
        })
    };
    let refused = runs(|submit| {
        assert_eq!(
            (submit.class, submit.deadline_ms, submit.max_wait_ms),
            (Class::Interactive, None, Some(2_000))
        );
    })
    .run(&["run", "m", "hi", "--max-wait", "2s"]);
    let stderr = "zllmctl: 1500 tokens wait, at most 1000 may; try again in 1 min 1 s\n";
    assert_eq!(refused, Ran { code: Some(1), stdout: String::new(), stderr: stderr.into() });
    let normal = runs(|submit| assert_eq!((submit.class, submit.deadline_ms), (Class::Normal, Some(60_000))));
    let args = ["run", "m", "hi", "--class", "normal", "--deadline", "1min"];
    assert_eq!(normal.run(&args).code, Some(1));
}
