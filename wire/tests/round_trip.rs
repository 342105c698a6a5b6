//! What is encoded is decoded to the same value, for every variant of every enum; nothing else is.

mod common;

use common::*;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use zllm_wire::*;

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let frame = encode(value).unwrap();
    assert_eq!(&decode::<T>(&frame).unwrap(), value);
    for cut in 0..frame.len() {
        assert!(
            decode::<T>(&frame[..cut]).is_err(),
            "{cut} of {} bytes gave a value: {value:?}",
            frame.len()
        );
    }
    let mut longer = frame.clone();
    longer.push(0);
    assert!(matches!(decode::<T>(&longer), Err(WireError::Trailing { extra: 1 })));
    let bytes = (longer.len() - limits::LENGTH_BYTES) as u32;
    longer[..limits::LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes());
    assert!(matches!(decode::<T>(&longer), Err(WireError::Trailing { extra: 1 })), "{value:?}");
}

/// `values` holds one value of each variant, in order: their indices count up from 0 and the next is no variant.
fn every_variant<T: Serialize + DeserializeOwned + PartialEq + Debug>(values: &[T]) {
    const INDEX_AT: usize = limits::LENGTH_BYTES + 1;
    for (index, value) in values.iter().enumerate() {
        assert_eq!(usize::from(encode(value).unwrap()[INDEX_AT]), index, "{value:?}");
        round_trip(value);
    }
    let mut past = encode(&(values.len() as u8, [0u8; 32])).unwrap();
    past[INDEX_AT] = values.len() as u8;
    match decode::<T>(&past) {
        Err(WireError::Malformed(message)) => assert!(message.contains("variant"), "{message}"),
        other => panic!("variant {} exists and is not tested: {other:?}", values.len()),
    }
}

#[test]
fn every_variant_of_every_enum() {
    every_variant(&client_frames());
    every_variant(&server_frames());
    every_variant(&ops());
    every_variant(&answers());
    every_variant(&events());
    every_variant(&prompts());
    every_variant(&templates());
    every_variant(&error_codes());
    every_variant(&job_states());
    every_variant(&model_states());
    every_variant(&[SessionState::Active, SessionState::Idle]);
    every_variant(&[Tier::Device, Tier::Ram, Tier::Ssd]);
    every_variant(&[FinishReason::Stop, FinishReason::Length, FinishReason::Cancelled]);
    every_variant(&stop_causes());
    every_variant(&[LoadStage::Open, LoadStage::Weights]);
    every_variant(&[ShowTarget::Job(job()), ShowTarget::Session(session_ref())]);
    every_variant(&[InspectTarget::Model("m".into()), InspectTarget::File("/m.gguf".into())]);
    every_variant(&[
        EvictTarget::Session(session_ref()),
        EvictTarget::All,
        EvictTarget::OlderThan { idle_ms: 7_200_000 },
    ]);
    every_variant(&block_states());
    every_variant(&outcomes());
    every_variant(&ssd_states());
    every_variant(&cancel_targets());
    every_variant(&classes());
    every_variant(&wait_reasons());
    every_variant(&phases());
    every_variant(&moments());
}

#[test]
fn defaults_and_every_prompt() {
    round_trip(&GenerationParams::default());
    round_trip(&Event::Text { choice: 15, text: "né".into(), tokens: 2, logprobs: logprobs() });
    for prompt in prompts() {
        round_trip(&Op::Submit(Box::new(submit(prompt))));
    }
}

#[test]
fn only_streams_go_on() {
    let open: Vec<_> = answers().into_iter().filter(|answer| !answer.is_final()).collect();
    assert_eq!(open.len(), 3);
    assert!(matches!(open[..], [Answer::Progress { .. }, Answer::Accepted { .. }, Answer::Event { .. }]));
}

#[test]
fn ids_are_proven_on_both_sides() {
    assert_eq!(JobId::new("j-7").unwrap().as_str(), "j-7");
    assert!(matches!(JobId::new("7"), Err(IdError::NotAJob { .. })));
    assert!(matches!(SessionId::new("j-7"), Err(IdError::NotASession { .. })));
    assert!(matches!(SessionId::new(""), Err(IdError::Length { bytes: 0 })));
    assert!(matches!(SessionId::new("x".repeat(65)), Err(IdError::Length { bytes: 65 })));
    assert!(matches!(SessionId::new("a b"), Err(IdError::Character { character: ' ', .. })));
    assert_eq!(Tenant::new("j-7").unwrap().as_str(), "j-7");
    assert!(matches!(Tenant::new("a/b"), Err(IdError::Character { character: '/', .. })));
    assert!(matches!(decode::<Tenant>(&encode(&"").unwrap()), Err(WireError::Malformed(_))));
    assert_eq!(BatchId::new("nightly").unwrap().as_str(), "nightly");
    assert_eq!(KeyName::new("laptop").unwrap().as_str(), "laptop");
    assert!(matches!(KeyName::new("a b"), Err(IdError::Character { .. })));
    assert!(matches!(BatchId::new(""), Err(IdError::Length { bytes: 0 })));
    assert_eq!(IdempotencyKey::new(" ~").unwrap().as_str(), " ~");
    assert!(matches!(IdempotencyKey::new(""), Err(IdError::KeyLength { bytes: 0 })));
    assert!(matches!(IdempotencyKey::new("x".repeat(129)), Err(IdError::KeyLength { bytes: 129 })));
    for bad in ['\n', '\u{7f}', 'é'] {
        let key = format!("a{bad}");
        assert!(
            matches!(IdempotencyKey::new(&*key), Err(IdError::KeyCharacter { character }) if character == bad)
        );
        assert!(
            matches!(decode::<IdempotencyKey>(&encode(&key).unwrap()), Err(WireError::Malformed(_))),
            "{bad}"
        );
    }
    for bad in ["j-7", "", "a/b"] {
        assert!(matches!(decode::<SessionId>(&encode(&bad).unwrap()), Err(WireError::Malformed(_))), "{bad}");
    }
}

#[test]
fn sessions_are_named_with_their_tenants() {
    assert_eq!(format!("{:6}|", session_ref()), "t/s-01|");
    assert_eq!(format!("{:6}|", SessionRef { tenant: None, id: session() }), "s-01  |");
    assert_eq!(tiers().total(), 8);
}

#[test]
fn a_million_tokens_fit() {
    round_trip_large(&Prompt::Tokens(TokenIds((0..1 << 20).collect())));
    round_trip_large(&Prompt::Text { text: "x".repeat(limits::MAX_FRAME_BYTES - 64), parse_special: false });
    let jobs = vec![job_info(JobState::Running); limits::MAX_LIST_ROWS];
    let sessions = vec![session_info(SessionState::Idle); limits::MAX_LIST_ROWS];
    round_trip_large(&Answer::Listing { sessions, jobs });
    let longest = JobId::new(format!("j-{}", "x".repeat(limits::MAX_ID_BYTES - 2))).unwrap();
    let row = BatchJob { job: longest, ..batch_job("x".repeat(limits::MAX_LABEL_BYTES)) };
    round_trip_large(&Answer::BatchJobs(BatchPage { jobs: vec![row; limits::MAX_BATCH_ROWS], more: true }));
    let label = Some("x".repeat(limits::MAX_LABEL_BYTES));
    let waits = vec![WaitingJob { label, ..waiting(wait_reasons().remove(4)) }; limits::MAX_LIST_ROWS];
    round_trip_large(&Answer::Queue(Box::new(QueueReport { waiting: waits, ..queue() })));
    let run = BlockRun { blocks: 1, state: BlockState::Cached, sessions: vec![0; 4], age_ms: u64::MAX };
    let mut map = residency().tiers.remove(0);
    map.runs = vec![run; limits::MAX_TIER_RUNS];
    round_trip_large(&Residency { tiers: vec![map; 65], ..residency() });
}

fn round_trip_large<T: Serialize + DeserializeOwned + PartialEq>(value: &T) {
    assert!(decode::<T>(&encode(value).unwrap()).unwrap() == *value);
}
