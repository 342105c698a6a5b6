//! Clients that vanish at random moments: before the hello, inside a frame, while their job waits, is prefilled, decodes, while
//! they do not read, while they read another's job. Nothing of them stays: no job, block, connection, descriptor or thread,
//! counted before and after. Their neighbours' answers are what they are alone.

use crate::common::kv::{Rng, seed, soak};
use crate::common::{Builder, Client, Daemon, greedy, wait_for};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use zllm_wire::{Answer, CancelTarget, ClientFrame, Event, JobId, Op, Request, Submit, VERSION};

/// Clients at one time.
const WORKERS: u64 = 6;
/// Threads that the pools for tokenizing and for the disk may start at any time, and that go when they had nothing to do for
/// ten seconds. Fewer than the clients of any moment.
const POOL_THREADS: usize = 8;

/// Where a client is when it vanishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Connected,
    InHello,
    Garbage,
    Idle,
    InFrame,
    UnansweredSubmit,
    Queued,
    Prefilling,
    Decoding,
    NotReading,
    HalfClosed,
    Reading,
    Detached,
}

const MOMENTS: [Moment; 13] = [
    Moment::Connected,
    Moment::InHello,
    Moment::Garbage,
    Moment::Idle,
    Moment::InFrame,
    Moment::UnansweredSubmit,
    Moment::Queued,
    Moment::Prefilling,
    Moment::Decoding,
    Moment::NotReading,
    Moment::HalfClosed,
    Moment::Reading,
    Moment::Detached,
];

/// What the daemon has at rest.
#[derive(Debug, PartialEq)]
struct Held {
    descriptors: usize,
    threads: usize,
}

impl Held {
    fn by(daemon: &Daemon) -> Self {
        let count = |what: &str| {
            std::fs::read_dir(format!("/proc/{}/{what}", daemon.pid())).expect("it runs").count()
        };
        Self { descriptors: count("fd"), threads: count("task") }
    }

    /// Waits until no job, ticket, block or connection but the asking one is left.
    fn at_rest(daemon: &Daemon, client: &mut Client) -> Self {
        wait_for("rest", || {
            let status = client.status();
            let used: u64 = status.blocks.iter().map(|row| row.used).sum();
            let busy = (status.running_jobs, status.queued_jobs, used, status.connections);
            (busy == (0, 0, 0, 1)).then_some(())
        });
        let Answer::Queue(queue) = client.ask(Op::Queue) else { panic!("no queue") };
        assert!(queue.waiting.is_empty() && queue.running.is_empty(), "{queue:?}");
        for load in
            queue.classes.iter().map(|row| row.queued).chain(queue.tenants.iter().map(|row| row.queued))
        {
            assert_eq!((load.jobs, load.tokens, load.bytes), (0, 0, 0), "{queue:?}");
        }
        Self::by(daemon)
    }
}

/// A prompt that takes the device a while.
fn long_prompt(rng: &mut Rng) -> String {
    (0..400).map(|_| format!("{} ", rng.below(1000))).collect()
}

/// The bytes of a frame.
fn bytes(frame: &ClientFrame) -> Vec<u8> {
    zllm_wire::encode(frame).expect("it fits")
}

/// Connects, comes as far as `moment` and vanishes. `shared` is a durable job that others read too.
fn vanish(daemon: &Daemon, moment: Moment, shared: &JobId, rng: &mut Rng) {
    let mut client = match moment {
        Moment::Connected | Moment::InHello => Client::connect_raw(&daemon.socket()),
        _ => daemon.connect(),
    };
    let endless = greedy("Once upon a time there was a", 150);
    let submit = bytes(&ClientFrame::Request(Request { id: 1, body: Op::Submit(Box::new(endless.clone())) }));
    let mut send = |bytes: &[u8]| client.stream.write_all(bytes).expect("it is read");
    match moment {
        Moment::Connected | Moment::Idle => {}
        Moment::InHello => {
            let hello = bytes(&ClientFrame::Hello { version: VERSION, client: "vanishing".into() });
            send(part(&hello, rng));
        }
        Moment::Garbage => send(&(0..64).map(|_| rng.below(256) as u8).collect::<Vec<_>>()),
        Moment::InFrame => send(part(&submit, rng)),
        Moment::UnansweredSubmit => send(&submit),
        Moment::NotReading => {
            for _ in 0..20 {
                let mut request = endless.clone();
                request.params.logprobs = Some(20);
                client.send(Op::Submit(Box::new(request)));
                client.send(Op::List);
            }
        }
        Moment::HalfClosed => {
            send(&submit);
            client.stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
            // The daemon takes that for a client that is gone, and closes.
            while client.read().is_some() {}
        }
        Moment::Queued | Moment::Prefilling | Moment::Decoding | Moment::Reading | Moment::Detached => {
            converse(&mut client, moment, endless, shared, rng);
        }
    }
    std::thread::sleep(Duration::from_micros(rng.below(20_000)));
}

/// The moments that come after an answer.
fn converse(client: &mut Client, moment: Moment, endless: Submit, shared: &JobId, rng: &mut Rng) {
    let mut left = 1 + rng.below(20);
    let op = match moment {
        Moment::Prefilling => Op::Submit(Box::new(greedy(&long_prompt(rng), 4))),
        Moment::Reading => Op::Attach { job: shared.clone(), from: rng.below(20) },
        Moment::Detached => Op::Submit(Box::new(Submit { detached: true, ..greedy("Water boils at", 2) })),
        _ => Op::Submit(Box::new(endless)),
    };
    let id = client.send(op);
    match moment {
        Moment::Prefilling => read_until(client, id, |event| matches!(event, Event::Started { .. })),
        Moment::Decoding => read_until(client, id, |event| {
            left -= u64::from(matches!(event, Event::Text { .. }));
            left == 0
        }),
        Moment::Reading => read_until(client, id, |_| {
            left -= 1;
            left == 0
        }),
        // Accepted, or refused because the queue is full; some do not wait for that.
        _ if left > 5 => drop(client.answer(id)),
        _ => {}
    }
}

/// The beginning of a frame, of random length.
fn part<'a>(whole: &'a [u8], rng: &mut Rng) -> &'a [u8] {
    &whole[..1 + rng.below(whole.len() as u64 - 1) as usize]
}

/// Reads a request's events until one is it, or it ends.
fn read_until(client: &mut Client, id: u64, mut is_it: impl FnMut(&Event) -> bool) {
    loop {
        match client.answer(id) {
            Answer::Event { event, .. } if is_it(&event) => return,
            Answer::Event { .. } | Answer::Accepted { .. } => {}
            _ => return,
        }
    }
}

/// So many clients, a few at a time; how many vanished at each moment.
fn vanish_all(daemon: &Daemon, clients: usize, shared: &JobId, seed: u64) -> BTreeMap<Moment, usize> {
    let next = AtomicUsize::new(0);
    let count = |worker: u64| {
        let mut rng = Rng::new(seed + 1000 * (worker + 1));
        let mut counts = BTreeMap::new();
        loop {
            let client = next.fetch_add(1, Ordering::Relaxed);
            if client >= clients {
                return counts;
            }
            // Each moment in turn, so that a short run has all of them.
            let moment = MOMENTS[client % MOMENTS.len()];
            vanish(daemon, moment, shared, &mut rng);
            *counts.entry(moment).or_insert(0) += 1;
        }
    };
    let mut counts = BTreeMap::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || count(worker))).collect();
        for (moment, count) in workers.into_iter().flat_map(|worker| worker.join().expect("a worker")) {
            *counts.entry(moment).or_insert(0) += count;
        }
    });
    counts
}

#[test]
fn nothing_stays_of_clients_that_vanish_at_random_moments() {
    let clients = if soak() { 1000 } else { 130 };
    let seed = seed("vanishing clients", 5);
    let daemon = Builder::new()
        .with(|settings| settings.kv_budget_bytes = 192 << 20)
        .arg("--running-jobs")
        .arg("4")
        .start();
    let mut watcher = daemon.connect();
    let neighbour = || greedy("The capital of France is", 24);
    let alone = watcher.run(neighbour()).text;
    let durable = |client: &mut Client| {
        let request = Submit { detached: true, stream: false, ..greedy("def fibonacci(n):", 900) };
        client.submit(request).1
    };
    let cancel = |client: &mut Client, job: JobId| {
        let answer = client.ask(Op::Cancel { target: CancelTarget::Job(job) });
        assert!(matches!(answer, Answer::Cancelled { .. }), "{answer:?}");
    };

    // The first ones make the daemon start what threads it keeps.
    let shared = durable(&mut watcher);
    vanish_all(&daemon, 4 * MOMENTS.len(), &shared, seed + 1);
    cancel(&mut watcher, shared);
    let before = Held::at_rest(&daemon, &mut watcher);

    let shared = durable(&mut watcher);
    let over = AtomicBool::new(false);
    let (counts, neighbours) = std::thread::scope(|scope| {
        let neighbours = scope.spawn(|| {
            let (mut client, mut runs) = (daemon.connect(), 0);
            while !over.load(Ordering::Relaxed) {
                assert_eq!(client.run(neighbour()).text, alone, "a neighbour's text");
                runs += 1;
            }
            runs
        });
        let counts = vanish_all(&daemon, clients, &shared, seed);
        over.store(true, Ordering::Relaxed);
        (counts, neighbours.join().expect("every neighbour is answered as it is alone"))
    });
    cancel(&mut watcher, shared);
    let after = Held::at_rest(&daemon, &mut watcher);
    println!(
        "{clients} clients vanished: {counts:?}; {neighbours} neighbours answered; {before:?}, then {after:?}"
    );
    assert_eq!(counts.values().sum::<usize>(), clients);
    assert!(neighbours > 0);
    // A writer that is given up closes its half of the socket a moment after the connection has ceased to count.
    wait_for("all descriptors to be closed", || {
        (Held::by(&daemon).descriptors <= before.descriptors).then_some(())
    });
    assert!(after.threads <= before.threads + POOL_THREADS, "threads are left");
    assert_eq!(watcher.run(neighbour()).text, alone);
}
