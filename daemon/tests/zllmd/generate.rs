//! What a client gets: the same text alone and beside others, streamed, attached to, cancelled.

use crate::common::{Answered, Builder, Client, Daemon, greedy, now, wait_for};
use std::time::Duration;
use zllm_wire::{
    Answer, CancelTarget, ErrorCode, Event, EvictTarget, FinishReason, JobState, Op, Prompt, SessionId,
    SessionRef, ShowTarget, Submit, TokenIds,
};

const PROMPTS: [&str; 4] = [
    "The capital of France is",
    "Once upon a time there was a",
    "Water boils at one hundred degrees because",
    "def fibonacci(n):",
];

fn requests() -> Vec<Submit> {
    let mut requests: Vec<_> = PROMPTS.iter().map(|prompt| greedy(prompt, 24)).collect();
    for (seed, prompt) in PROMPTS.iter().enumerate() {
        let mut request = greedy(prompt, 24);
        request.params.sampling.temperature = Some(0.8);
        request.params.sampling.seed = Some(seed as u64 + 7);
        requests.push(request);
    }
    requests
}

fn texts(answers: Vec<Answered>) -> Vec<String> {
    answers.into_iter().map(|answer| answer.text).collect()
}

/// All at once on connections of their own.
fn run_together(daemon: &Daemon, requests: &[Submit]) -> Vec<String> {
    let mut clients: Vec<Client> = requests.iter().map(|_| daemon.connect()).collect();
    let ids: Vec<u64> =
        clients.iter_mut().zip(requests).map(|(client, request)| client.submit(request.clone()).0).collect();
    texts(clients.iter_mut().zip(ids).map(|(client, id)| client.finish(id)).collect())
}

#[test]
fn four_at_once_give_what_one_after_another_gives_and_so_does_any_chunk_size() {
    let requests = requests();
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let alone = texts(requests.iter().map(|request| client.run(request.clone())).collect());
    assert!(alone.iter().all(|text| !text.trim().is_empty()), "{alone:?}");
    assert_ne!(alone[..4], alone[4..], "temperature 0.8 draws");
    assert_eq!(run_together(&daemon, &requests[..4]), alone[..4]);
    assert_eq!(run_together(&daemon, &requests[4..]), alone[4..]);

    for chunk in ["1", "3"] {
        let other = Builder::new().arg("--prefill-chunk-tokens").arg(chunk).start();
        assert_eq!(run_together(&other, &requests[2..6]), alone[2..6], "prefill chunk of {chunk}");
    }
}

#[test]
fn events_come_in_order_and_can_be_read_again_from_any_offset() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let (id, job) = client.submit(greedy(PROMPTS[0], 20));
    let whole = client.finish(id);
    let offsets: Vec<u64> = whole.events.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<_>>());
    let usage = whole.usage.expect("it finished");
    assert!(matches!(whole.events[0].1, Event::Queued { .. }));
    assert!(matches!(whole.events[1].1, Event::Started { cached_tokens: 0, .. }));
    assert_eq!(usage.generated_tokens, 20);
    assert!(usage.first_token_ms >= usage.prefill_ms && usage.decode_ms > 0.0, "{usage:?}");

    let mut later = daemon.connect();
    for from in [0, 3, offsets.len() as u64 - 1, offsets.len() as u64] {
        let id = later.send(Op::Attach { job: job.clone(), from });
        assert_eq!(later.finish(id).events, whole.events[from as usize..]);
    }
    let Answer::Job(detail) = later.ask(Op::Show(ShowTarget::Job(job))) else { panic!("no job") };
    assert_eq!((detail.choices[0].text.clone(), detail.events), (whole.text, whole.events.len() as u64));
    assert_eq!((detail.info.state, detail.finish), (JobState::Done, Some(FinishReason::Length)));
}

#[test]
fn a_detached_job_outlives_its_connection_and_an_attached_one_does_not() {
    let daemon = Daemon::start();
    let mut watcher = daemon.connect();
    let submit = |detached| {
        let mut client = daemon.connect();
        let request = Submit { detached, stream: false, ..greedy(PROMPTS[1], 40) };
        client.submit(request).1
    };
    let kept = submit(true);
    let id = watcher.send(Op::Attach { job: kept, from: 0 });
    let answer = watcher.finish(id);
    assert_eq!(answer.usage.expect("it finished").generated_tokens, 40);

    let lost = submit(false);
    let id = watcher.send(Op::Attach { job: lost, from: 0 });
    let answer = watcher.finish(id);
    assert!(
        matches!(answer.events.last(), Some((_, Event::Finished { reason: FinishReason::Cancelled, .. }))),
        "{answer:?}"
    );
}

#[test]
fn a_client_that_vanishes_or_cancels_frees_its_slot_within_a_second() {
    let daemon = Daemon::start();
    let mut watcher = daemon.connect();
    let endless = || greedy(PROMPTS[1], 1000);

    let mut killed = daemon.connect();
    let (id, _) = killed.submit(endless());
    killed.first_text(id);
    let start = now();
    drop(killed);
    wait_for("the slot", || (watcher.status().running_jobs == 0).then_some(()));
    assert!(now() - start < Duration::from_secs(1), "{:?}", now() - start);

    let (id, job) = watcher.submit(endless());
    watcher.first_text(id);
    let start = now();
    assert_eq!(
        watcher.ask(Op::Cancel { target: CancelTarget::Job(job.clone()) }),
        Answer::Cancelled { jobs: 1 }
    );
    let answer = watcher.finish(id);
    assert!(now() - start < Duration::from_secs(1), "{:?}", now() - start);
    assert!(matches!(
        answer.events.last(),
        Some((_, Event::Finished { reason: FinishReason::Cancelled, .. }))
    ));
    assert_eq!(
        watcher.ask(Op::Cancel { target: CancelTarget::Job(job) }),
        Answer::Cancelled { jobs: 0 },
        "cancelling an ended job is done already"
    );
    let status = watcher.status();
    assert_eq!((status.running_jobs, status.queued_jobs, status.jobs_cancelled), (0, 0, 2));
    assert_eq!(status.blocks[0].used, 0, "all blocks are back");
}

#[test]
fn a_cancelled_job_sends_the_text_held_back_for_a_stop_string() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let whole = client.run(greedy(PROMPTS[1], 40)).text;
    // Begins as the answer does and is never completed: all of the answer is held back.
    let mut request = greedy(PROMPTS[1], 1000);
    request.params.stop = vec![format!("{whole}\u{1}")];
    let (id, job) = client.submit(request);
    wait_for("some tokens", || match client.ask(Op::Show(ShowTarget::Job(job.clone()))) {
        Answer::Job(detail) => (detail.info.generated_tokens >= 5).then_some(()),
        other => panic!("no job but {other:?}"),
    });
    client.ask(Op::Cancel { target: CancelTarget::Job(job) });
    let answer = client.finish(id);
    let Some((_, Event::Finished { reason: FinishReason::Cancelled, usage, .. })) = answer.events.last()
    else {
        panic!("{answer:?}")
    };
    assert!(usage.generated_tokens >= 5 && !answer.text.is_empty(), "{answer:?}");
    assert!(whole.starts_with(&answer.text) || answer.text.starts_with(&whole), "{answer:?}");
}

#[test]
fn a_repeated_prompt_comes_from_the_cache_and_eviction_empties_it() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let session = SessionId::new("talk").expect("an id");
    let session_ref = SessionRef { tenant: None, id: session.clone() };
    let prompt = "All work and no play makes Jack a dull boy. ".repeat(20);
    let request = Submit { session: Some(session), ..greedy(&prompt, 8) };
    let first = client.run(request.clone());
    let second = client.run(request);
    assert_eq!(first.text, second.text);
    let (cold, warm) = (first.usage.expect("finished"), second.usage.expect("finished"));
    assert_eq!(cold.cached_tokens, 0);
    assert_eq!(warm.cached_tokens, warm.prompt_tokens - 1, "to the token, not to the block");

    let Answer::Session(detail) = client.ask(Op::Show(ShowTarget::Session(session_ref.clone()))) else {
        panic!("no session")
    };
    assert_eq!(detail.jobs.len(), 2);
    assert!(detail.info.bytes.device > 0);
    let Answer::Listing { sessions, jobs } = client.ask(Op::List) else { panic!("no listing") };
    assert_eq!((sessions.len(), jobs.len()), (1, 2));

    let Answer::Evicted { sessions, blocks, bytes } =
        client.ask(Op::Evict { target: EvictTarget::Session(session_ref.clone()), tier: None })
    else {
        panic!("nothing evicted")
    };
    assert!(sessions == 1 && blocks > 0 && bytes > 0);
    let Answer::Error(fault) =
        client.ask(Op::Evict { target: EvictTarget::Session(session_ref), tier: None })
    else {
        panic!("evicted twice")
    };
    assert_eq!(fault.code, ErrorCode::NotFound);
    client.ask(Op::Evict { target: EvictTarget::All, tier: None });
    assert_eq!(client.status().blocks[0].cached, 0);
}

#[test]
fn bad_requests_are_told_what_is_wrong() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let mut fault = |request: Submit| match client.ask(Op::Submit(Box::new(request))) {
        Answer::Error(fault) => fault,
        other => panic!("no error but {other:?}"),
    };
    let unknown = fault(Submit { model: "nope".into(), ..greedy("x", 1) });
    assert_eq!(unknown.code, ErrorCode::NotFound);
    assert!(unknown.message.contains("nope"), "{}", unknown.message);
    assert_eq!(
        fault(Submit { model: "../../etc/passwd".into(), ..greedy("x", 1) }).code,
        ErrorCode::NotFound
    );
    assert_eq!(fault(greedy("x", 0)).code, ErrorCode::Invalid);
    let tokens = |ids| Submit { prompt: Prompt::Tokens(TokenIds(ids)), ..greedy("", 1) };
    assert_eq!(fault(tokens(vec![])).code, ErrorCode::Invalid);
    assert_eq!(fault(tokens(vec![u32::MAX])).code, ErrorCode::Invalid);
    let long = fault(tokens(vec![1; 100_000]));
    assert_eq!(long.code, ErrorCode::TooLong { tokens: 100_000, context: 8192 });
    assert!(long.message.contains("100000 tokens") && long.message.contains("8192"), "{}", long.message);
    let mut hot = greedy("x", 1);
    hot.params.sampling.temperature = Some(f32::NAN);
    assert_eq!(fault(hot).code, ErrorCode::Invalid);
    assert_eq!(daemon.metric("zllm_requests_total{outcome=\"refused\"}"), 7.0);
}

#[test]
fn a_model_of_the_folder_is_loaded_on_demand_and_unloaded() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let Answer::Models(models) = client.ask(Op::Models) else { panic!("no models") };
    let other = models.iter().find(|model| model.name == "gemma3-270m").expect("in the models folder");
    assert_eq!(other.state, zllm_wire::ModelState::Available);
    let answer = client.run(Submit { model: "gemma3-270m".into(), ..greedy("The capital of France is", 6) });
    assert_eq!(answer.usage.expect("finished").generated_tokens, 6);
    let rows = |client: &mut Client| client.status().blocks.len();
    assert_eq!(rows(&mut client), 4, "two models on two tiers");
    assert_eq!(client.ask(Op::Unload { model: "gemma3-270m".into() }), Answer::Done);
    assert_eq!(rows(&mut client), 2);
    let id = client.send(Op::Load { model: "gemma3-270m".into() });
    let last = loop {
        match client.answer(id) {
            Answer::Progress { .. } => {}
            last => break last,
        }
    };
    let Answer::Model(info) = last else { panic!("not loaded but {last:?}") };
    assert_eq!((info.state, info.architecture.as_str()), (zllm_wire::ModelState::Loaded, "gemma3"));
}
