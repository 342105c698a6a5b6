//! What a request asks of sampling and of its end, through the real daemon: honoured to the last byte, or refused by name.

use crate::common::{Answered, Client, Daemon, greedy};
use zllm_wire::{
    Answer, CancelTarget, ChoiceEnd, ErrorCode, Event, EvictTarget, FinishReason, GenerationParams, Op,
    ShowTarget, StopCause, Submit, TokenLogprob,
};

type Change = fn(&mut GenerationParams);

const PROMPT: &str = "Once upon a time";

fn with(tokens: u32, change: impl FnOnce(&mut GenerationParams)) -> Submit {
    let mut request = greedy(PROMPT, tokens);
    change(&mut request.params);
    request
}

fn logprobs(answer: &Answered) -> Vec<TokenLogprob> {
    let of = |(_, event): &(u64, Event)| match event {
        Event::Text { logprobs, tokens, .. } => {
            assert_eq!(logprobs.len(), *tokens as usize, "one for each token");
            logprobs.clone()
        }
        _ => vec![],
    };
    answer.events.iter().flat_map(of).collect()
}

fn end(answer: &Answered) -> ChoiceEnd {
    match answer.events.last() {
        Some((_, Event::Finished { choices, .. })) if choices.len() == 1 => choices[0].clone(),
        other => panic!("no single end but {other:?}"),
    }
}

fn stopped(cause: StopCause) -> ChoiceEnd {
    ChoiceEnd { reason: FinishReason::Stop, stop: Some(cause) }
}

#[test]
fn log_probabilities_come_with_the_text() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let plain = client.run(greedy(PROMPT, 12));
    let told = client.run(with(12, |params| params.logprobs = Some(5)));
    assert_eq!(told.text, plain.text);
    let tokens = logprobs(&told);
    assert_eq!(tokens.len(), 12);
    let mut bytes = Vec::new();
    for token in &tokens {
        assert_eq!(token.offset, bytes.len() as u64);
        bytes.extend_from_slice(&token.bytes);
        assert_eq!(
            (token.top.len(), token.top[0].token, token.top[0].logprob),
            (5, token.token, token.logprob)
        );
        assert!(token.logprob <= 0.0 && token.logprob > -20.0, "{token:?}");
    }
    assert_eq!(bytes, told.text.as_bytes());

    // Held back for a stop string until the end: the last tokens' entries come all the same.
    let stop = format!("{}\u{1}", &told.text[told.text.len() - 9..]);
    let held = client.run(with(12, |params| (params.logprobs, params.stop) = (Some(5), vec![stop])));
    assert_eq!((logprobs(&held), &held.text), (tokens.clone(), &told.text));
    // So do those of tokens that a stop cuts off, with offsets behind the text.
    let cut = told.text[..told.text.len() - 9].len();
    let stop = told.text[cut..].to_owned();
    let short = client.run(with(12, |params| (params.logprobs, params.stop) = (Some(5), vec![stop.clone()])));
    assert_eq!(
        (logprobs(&short), short.text.as_str()),
        (tokens, &told.text[..told.text.find(&stop).unwrap()])
    );
}

#[test]
fn stop_tokens_and_fewest_tokens_are_honoured_and_the_end_says_by_what() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let whole = client.run(with(12, |params| params.logprobs = Some(0)));
    assert_eq!(end(&whole), ChoiceEnd { reason: FinishReason::Length, stop: None });
    let tokens = logprobs(&whole);
    let at = tokens.iter().position(|token| token.token == tokens[7].token).expect("it is there");
    let token = tokens[at].token;

    let (id, job) = client.submit(with(12, |params| params.stop_tokens = vec![token]));
    let answer = client.finish(id);
    assert_eq!(end(&answer), stopped(StopCause::Token { token }));
    assert_eq!(answer.text, whole.text[..tokens[at].offset as usize]);
    let Answer::Job(detail) = client.ask(Op::Show(ShowTarget::Job(job))) else { panic!("no job") };
    assert_eq!(detail.choices[0].end, Some(stopped(StopCause::Token { token })));

    let late = client.run(with(12, |params| {
        (params.stop_tokens, params.min_tokens, params.logprobs) =
            (vec![token], Some(at as u32 + 2), Some(0));
    }));
    let drawn: Vec<u32> = logprobs(&late).iter().map(|token| token.token).collect();
    assert!(drawn.len() >= at + 2 && !drawn[..at + 2].contains(&token), "{drawn:?}, without {token}");

    let stop = whole.text[..3].to_owned();
    let answer = client.run(with(12, |params| params.stop = vec!["never said".into(), stop.clone()]));
    assert_eq!((end(&answer), answer.text.as_str()), (stopped(StopCause::Text { text: stop.clone() }), ""));
    let answer = client.run(with(12, |params| (params.stop, params.min_tokens) = (vec![stop], Some(12))));
    assert_eq!(answer.text, whole.text, "its text is not searched");
}

#[test]
fn every_sampler_draws_the_same_twice_and_something_else_than_without_it() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let mut drawn = |change: Change| {
        let request = || {
            with(24, |params| {
                params.sampling.temperature = Some(1.5);
                params.sampling.seed = Some(3);
                change(params);
            })
        };
        let first = client.run(request()).text;
        assert_eq!(client.run(request()).text, first);
        first
    };
    let plain = drawn(|_| {});
    let samplers: [(&str, Change); 4] = [
        ("dynatemp", |params| params.sampling.dynatemp_range = Some(1.0)),
        ("typical", |params| params.sampling.typical_p = Some(0.3)),
        ("xtc", |params| {
            params.sampling.xtc_probability = Some(1.0);
            params.sampling.xtc_threshold = Some(0.05);
        }),
        ("mirostat", |params| {
            params.sampling.mirostat = Some(2);
            params.sampling.mirostat_tau = Some(2.0);
        }),
    ];
    for (name, change) in samplers {
        assert_ne!(drawn(change), plain, "{name}");
    }
    // A text that repeats itself goes on otherwise with DRY.
    let mut request = greedy("one two three four. one two three four. one two", 8);
    let repeats = client.run(request.clone()).text;
    request.params.sampling.dry_multiplier = Some(5.0);
    assert_ne!(client.run(request).text, repeats);
}

#[test]
fn several_answers_share_the_prompt_and_are_each_their_own_seeds() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let prompt = "All work and no play makes Jack a dull boy. ".repeat(20);
    let request = |n| {
        let mut request = greedy(&prompt, 16);
        request.params.sampling.temperature = Some(1.2);
        request.params.sampling.seed = Some(11);
        request.params.n = n;
        request
    };
    let alone = client.run(request(None));
    client.ask(Op::Evict { target: EvictTarget::All, tier: None });
    let computed = daemon.metric("zllm_tokens_total{source=\"computed\"}");

    let (id, job) = client.submit(request(Some(3)));
    let several = client.finish(id);
    let text_of = |answer: &Answered, of: u32| -> String {
        let text = |(_, event): &(u64, Event)| match event {
            Event::Text { choice, text, .. } if *choice == of => Some(text.clone()),
            _ => None,
        };
        answer.events.iter().filter_map(text).collect()
    };
    let texts: Vec<String> = (0..3).map(|choice| text_of(&several, choice)).collect();
    assert_eq!(texts[0], alone.text, "the first answer is that of a request for one");
    assert!(texts[1] != texts[0] && texts[2] != texts[0] && texts[1] != texts[2], "{texts:?}");
    let usage = several.usage.expect("it finished");
    assert_eq!(
        (usage.prompt_tokens, usage.generated_tokens),
        (alone.usage.expect("finished").prompt_tokens, 48)
    );
    let Some((_, Event::Finished { choices, .. })) = several.events.last() else { panic!("{several:?}") };
    assert_eq!(choices.as_slice(), vec![ChoiceEnd { reason: FinishReason::Length, stop: None }; 3]);

    // The prompt's full blocks are computed once: the others compute what stands behind them.
    let added = daemon.metric("zllm_tokens_total{source=\"computed\"}") - computed;
    let rest = (usage.prompt_tokens - 1) % 64 + 1;
    assert_eq!(added, (usage.prompt_tokens + 2 * rest) as f64);

    let Answer::Job(detail) = client.ask(Op::Show(ShowTarget::Job(job))) else { panic!("no job") };
    let shown: Vec<&str> = detail.choices.iter().map(|choice| choice.text.as_str()).collect();
    assert_eq!(shown, texts);
    let again = client.run(request(Some(3)));
    assert_eq!((0..3).map(|choice| text_of(&again, choice)).collect::<Vec<_>>(), texts);

    let (id, job) = client.submit(Submit {
        params: GenerationParams { max_tokens: Some(1000), ..request(Some(4)).params },
        ..request(None)
    });
    client.first_text(id);
    client.ask(Op::Cancel { target: CancelTarget::Job(job) });
    let cancelled = client.finish(id);
    let Some((_, Event::Finished { reason: FinishReason::Cancelled, choices, .. })) = cancelled.events.last()
    else {
        panic!("{cancelled:?}")
    };
    assert_eq!(choices.len(), 4);
    let status = client.status();
    assert_eq!((status.running_jobs, status.queued_jobs, status.blocks[0].used), (0, 0, 0), "all is back");
}

fn refused(client: &mut Client, request: Submit) -> String {
    match client.ask(Op::Submit(Box::new(request))) {
        Answer::Error(fault) if fault.code == ErrorCode::Invalid => fault.message,
        other => panic!("not refused but {other:?}"),
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let refusals: [(Change, &str); 10] = [
        (|params| params.min_tokens = Some(13), "min_tokens is 13"),
        (|params| params.logprobs = Some(21), "logprobs is 21"),
        (|params| params.stop_tokens = vec![u32::MAX], "stop_tokens names token 4294967295"),
        (|params| params.stop = vec![String::new()], "stop string 0 has 0 bytes"),
        (|params| params.n = Some(0), "n is 0, must be from 1 to 16"),
        (|params| params.n = Some(17), "n is 17, must be from 1 to 16"),
        (|params| params.sampling.mirostat = Some(1), "mirostat is 1"),
        (|params| params.sampling.typical_p = Some(0.5), "typical_p cannot be used with temperature 0"),
        (|params| params.sampling.xtc_threshold = Some(0.7), "xtc_threshold is 0.7, must be from 0 to 0.5"),
        (|params| params.sampling.dry_base = Some(f32::NAN), "dry_base is NaN"),
    ];
    for (change, expected) in refusals {
        let message = refused(&mut client, with(12, change));
        assert!(message.starts_with(expected), "{message}");
    }
    let mut request = with(12, |params| params.sampling.temperature = Some(1.0));
    (request.params.sampling.mirostat, request.params.sampling.top_k) = (Some(2), Some(40));
    assert!(refused(&mut client, request).starts_with("top_k cannot be used with mirostat"));
}
