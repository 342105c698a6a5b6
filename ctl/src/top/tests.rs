//! What is drawn, to the character: `80x24.txt`, `120x40.txt` and `plain.txt` are what a person should see.

use super::feed::Snapshot;
use super::keys::Pane;
use super::*;
use ratatui::{Terminal, backend::TestBackend};
use zllm_wire::*;

fn load(class: Class, jobs: u64, tokens: u64) -> ClassLoad {
    ClassLoad {
        class,
        queued: QueueLoad { jobs, tokens, bytes: jobs * 3000 },
        limit: QueueLoad { jobs: 512, tokens: 1 << 20, bytes: 64 << 20 },
    }
}

fn job(number: u64) -> JobId {
    JobId::new(format!("j-{:016x}", 0x0193_7a2f_0000_0000 + number)).unwrap()
}

fn waiting(position: u32, class: Class, why: WaitReason) -> WaitingJob {
    WaitingJob {
        job: job(u64::from(position) + 16),
        label: Some(format!("line-{position}\nof the batch")),
        tenant: (position % 2 == 1).then(|| Tenant::new("acme").unwrap()),
        session: None,
        model: "qwen2.5-coder-0.5b".into(),
        class,
        level: class as u8,
        position,
        waited_ms: 62_000 + 1000 * u64::from(position),
        prompt_tokens: 100,
        max_tokens: 512,
        generated_tokens: 17,
        why,
        starts_in_ms: (position < 3).then_some(14_000 * u64::from(position)),
    }
}

fn running(number: u64, phase: Phase) -> RunningJob {
    RunningJob {
        job: job(number),
        label: Some("Grüße".into()),
        tenant: None,
        model: "smollm2-135m".into(),
        class: Class::Interactive,
        phase,
        generated_tokens: 46,
        max_tokens: 1024,
        ticket_tokens: 1100,
        ticket_bytes: 25 << 20,
        since_ms: 3210,
    }
}

fn queue() -> QueueReport {
    let prefill = Phase::Prefill { done: 512, total: 2000 };
    let reasons = [
        WaitReason::Memory { blocks: 40, free: 12 },
        WaitReason::Turn,
        WaitReason::Parked,
        WaitReason::Model { state: "loading".into() },
        WaitReason::Held,
        WaitReason::Places,
        WaitReason::Reading,
        WaitReason::Draining,
        WaitReason::Storing,
    ];
    let job =
        |(position, why)| waiting(position, if position < 2 { Class::Normal } else { Class::Batch }, why);
    QueueReport {
        draining: true,
        waiting: (0..).zip(reasons).map(job).collect(),
        running: vec![running(1, Phase::Decode), running(2, prefill)],
        classes: vec![
            load(Class::Interactive, 0, 0),
            load(Class::Normal, 2, 1400),
            load(Class::Batch, 7, 412_345),
        ],
        tenants: vec![],
        running_limit: 8,
    }
}

fn status() -> Status {
    let times = |p50_ms, count| Percentiles { p50_ms, p90_ms: p50_ms * 2.0, p99_ms: p50_ms * 3.0, count };
    let kv = KvStatus {
        ssd: SsdState::Ready,
        path: Some("/var/lib/zllm".into()),
        file_bytes: 3 << 30,
        budget_bytes: 8 << 30,
        stored_blocks: 700,
        unsaved_bytes: 0,
        ram_budget_bytes: 2 << 30,
        ram_used_bytes: 100 << 20,
        read_bytes_per_s: None,
        compute_tokens_per_s: None,
        evicted_blocks: TierBlocks::default(),
        lost_unsaved_blocks: 0,
    };
    let blocks = |tier, used, cached| BlockUsage {
        model: "m".into(),
        tier,
        block_bytes: 1 << 20,
        total: 1000,
        used,
        cached,
    };
    Status {
        version: "0.1.0".into(),
        pid: 4711,
        uptime_ms: 7_620_000,
        draining: true,
        models: vec![],
        devices: vec![DeviceInfo {
            name: "cpu".into(),
            description: "AVX-512".into(),
            total_bytes: 16 << 30,
            used_bytes: 3 << 30,
            busy: 0.625,
        }],
        blocks: vec![blocks(Tier::Device, 250, 500), blocks(Tier::Ram, 1, 1)],
        kv,
        queued_jobs: 9,
        queue_capacity: 512,
        held_jobs: 1,
        parked_jobs: 1,
        running_jobs: 2,
        jobs_durable: true,
        jobs_fault: None,
        sessions: 3,
        connections: 2,
        jobs_done: 1234,
        jobs_failed: 0,
        jobs_cancelled: 5,
        jobs_refused: 7,
        prompt_tokens: 0,
        cached_tokens: 0,
        generated_tokens: 0,
        speed: Speed {
            prefill_tokens_per_s: 812.04,
            decode_tokens_per_s: 82.13,
            batch_rows: 3.4,
            first_token: times(120.0, 12),
            inter_token: times(24.1, 4096),
        },
    }
}

fn snapshot() -> Snapshot {
    Snapshot { status: Box::new(status()), queue: Box::new(queue()) }
}

fn live() -> Live {
    let mut live = Live::new(Duration::from_secs(1));
    live.take(Ok(snapshot()), clock::now());
    live
}

/// What stands on a terminal of that size.
fn drawn(live: &mut Live, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| live.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[track_caller]
fn assert_drawn(text: &str, golden: &str) {
    assert!(text == golden, "drawn is:\n{text}\nwanted is:\n{golden}");
}

#[test]
fn a_small_terminal() {
    assert_drawn(&drawn(&mut live(), 80, 24), include_str!("80x24.txt"));
}

#[test]
fn a_large_terminal() {
    assert_drawn(&drawn(&mut live(), 120, 40), include_str!("120x40.txt"));
}

#[test]
fn a_page_without_a_terminal_is_whole() {
    let line = |line: ratatui::text::Line<'_>| {
        let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        text.trim_end().to_owned() + "\n"
    };
    let text: String = page::whole(&snapshot(), PLAIN_COLUMNS).into_iter().map(line).collect();
    assert_drawn(&text, include_str!("plain.txt"));
}

#[test]
fn nothing_breaks_on_a_tiny_terminal() {
    for (width, height) in [(1, 1), (5, 3), (20, 10), (40, 12), (300, 4)] {
        let text = drawn(&mut live(), width, height);
        assert_eq!(text.lines().count(), usize::from(height));
    }
}

#[test]
fn what_is_wrong_stands_at_the_foot() {
    let now = clock::now();
    let mut live = Live::new(Duration::from_secs(1));
    assert!(drawn(&mut live, 80, 24).ends_with("\nasking the daemon\n"));
    live.take(Err(Failure::Refused("no daemon listens\n on /run/z.sock".into())), now);
    assert!(
        drawn(&mut live, 80, 24)
            .ends_with("\nnot reachable, trying again: no daemon listens  on /run/z.sock\n")
    );

    // It comes, is silent, and goes: what was seen last stays.
    live.take(Ok(snapshot()), now);
    live.wait(now + Duration::from_secs(5));
    assert!(drawn(&mut live, 80, 24).ends_with("\nq quits, tab changes the list, up and down scroll it\n"));
    live.wait(now + Duration::from_secs(6));
    assert!(drawn(&mut live, 80, 24).ends_with("\nno answer for 6 s\n"));
    live.take(Err(Failure::Lost("the daemon closed it".into())), now);
    let text = drawn(&mut live, 80, 24);
    assert!(
        text.contains("zllmd 0.1.0") && text.contains("trying again: connection to the daemon lost"),
        "{text}"
    );

    let status = Status { jobs_durable: false, jobs_fault: Some("the disk is full".into()), ..status() };
    live.take(Ok(Snapshot { status: Box::new(status), queue: Box::new(queue()) }), now);
    assert!(drawn(&mut live, 80, 24).ends_with("\nno queue that lasts: the disk is full\n"));
}

#[test]
fn lists_scroll_and_share_the_room() {
    let mut live = live();
    live.choices = Choices { pane: Pane::Waiting, running_from: 0, waiting_from: 2 };
    let text = drawn(&mut live, 80, 24);
    assert!(text.contains("parked at token 17") && !text.contains("40 blocks, 12 free"), "{text}");
    // Past the end the last one stays.
    live.choices.waiting_from = 100;
    assert!(drawn(&mut live, 80, 24).contains("being stored"));
    assert_eq!(live.choices.waiting_from, 8);

    let mut crowd = snapshot();
    crowd.queue.running = (0..50).map(|number| running(number, Phase::Decode)).collect();
    crowd.queue.waiting = (0..50).map(|position| waiting(position, Class::Batch, WaitReason::Held)).collect();
    live.take(Ok(crowd), clock::now());
    live.choices = Choices::default();
    let text = drawn(&mut live, 80, 24);
    let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!((lines("decode 46 of 1024"), lines("  held  ")), (4, 5), "{text}");
}
