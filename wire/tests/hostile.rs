//! Bytes that are not trusted: wrong lengths, wrong versions, cuts, noise. No panic, and an error of the right kind.

mod common;

use common::*;
use proptest::prelude::*;
use std::io::Cursor;
use zllm_wire::limits::{
    LENGTH_BYTES, MAX_BATCH_ROWS, MAX_DRY_BREAKERS, MAX_FRAME_BYTES, MAX_LIST_ROWS, MAX_LOGIT_BIASES,
    MAX_MOMENTS, MAX_RUN_SESSIONS, MAX_STOP_STRINGS, MAX_STOP_TOKENS, MAX_TIER_RUNS,
};
use zllm_wire::*;

fn frame_of(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

#[test]
fn lengths_are_checked_before_anything_is_read() {
    for bytes in [MAX_FRAME_BYTES + 1, u32::MAX as usize] {
        let prefix = (bytes as u32).to_le_bytes();
        assert!(matches!(decode::<Op>(&prefix), Err(WireError::TooLong { bytes: b }) if b == bytes));
        let mut decoder = FrameDecoder::new();
        decoder.push(&prefix);
        assert!(matches!(decoder.pop::<Op>(), Err(WireError::TooLong { .. })));
        assert!(matches!(read_frame::<Op>(&mut Cursor::new(prefix)), Err(WireError::TooLong { .. })));
    }
    assert!(matches!(decode::<Op>(&[0; LENGTH_BYTES]), Err(WireError::Empty)));
    let too_long = "x".repeat(MAX_FRAME_BYTES);
    assert!(matches!(encode(&too_long), Err(WireError::TooLong { .. })));
}

#[test]
fn other_versions_are_named() {
    let mut frame = encode(&Op::List).unwrap();
    frame[LENGTH_BYTES] = 9;
    assert!(matches!(decode::<Op>(&frame), Err(WireError::Version { found: 9 })));
}

#[test]
fn lists_inside_a_frame_are_bounded() {
    let with_stops = |n: usize| GenerationParams { stop: vec![String::new(); n], ..Default::default() };
    assert!(decode::<GenerationParams>(&encode(&with_stops(MAX_STOP_STRINGS)).unwrap()).is_ok());
    let over = encode(&with_stops(MAX_STOP_STRINGS + 1)).unwrap();
    assert!(matches!(decode::<GenerationParams>(&over), Err(WireError::Malformed(_))));
    let bias = LogitBias { token: 1, bias: 0.0 };
    let over = SamplingParams { logit_bias: vec![bias; MAX_LOGIT_BIASES + 1], ..Default::default() };
    assert!(matches!(decode::<SamplingParams>(&encode(&over).unwrap()), Err(WireError::Malformed(_))));
    let over = GenerationParams { stop_tokens: vec![1; MAX_STOP_TOKENS + 1], ..Default::default() };
    assert!(matches!(decode::<GenerationParams>(&encode(&over).unwrap()), Err(WireError::Malformed(_))));
    let with_breakers = |n: usize| SamplingParams {
        dry_sequence_breakers: Some(vec![String::new(); n]),
        ..Default::default()
    };
    let fits = encode(&with_breakers(MAX_DRY_BREAKERS)).unwrap();
    assert_eq!(decode::<SamplingParams>(&fits).unwrap(), with_breakers(MAX_DRY_BREAKERS));
    let over = encode(&with_breakers(MAX_DRY_BREAKERS + 1)).unwrap();
    assert!(matches!(decode::<SamplingParams>(&over), Err(WireError::Malformed(_))));
    let run =
        |sessions| BlockRun { blocks: 1, state: BlockState::Free, sessions: vec![0; sessions], age_ms: 0 };
    let mut map = residency().tiers.remove(0);
    map.runs = vec![run(MAX_RUN_SESSIONS); MAX_TIER_RUNS];
    assert!(decode::<TierMap>(&encode(&map).unwrap()).is_ok());
    map.runs.push(run(0));
    assert!(matches!(decode::<TierMap>(&encode(&map).unwrap()), Err(WireError::Malformed(_))));
    map.runs = vec![run(MAX_RUN_SESSIONS + 1)];
    assert!(matches!(decode::<TierMap>(&encode(&map).unwrap()), Err(WireError::Malformed(_))));
    let moments = |n| JobDetail { timeline: vec![timeline()[0]; n], ..job_detail() };
    assert!(decode::<JobDetail>(&encode(&moments(MAX_MOMENTS)).unwrap()).is_ok());
    let over = encode(&moments(MAX_MOMENTS + 1)).unwrap();
    assert!(matches!(decode::<JobDetail>(&over), Err(WireError::Malformed(_))));
    let over = QueueReport { waiting: vec![waiting(WaitReason::Turn); MAX_LIST_ROWS + 1], ..queue() };
    assert!(matches!(decode::<QueueReport>(&encode(&over).unwrap()), Err(WireError::Malformed(_))));
    let over = BatchPage { jobs: vec![batch_job(String::new()); MAX_BATCH_ROWS + 1], more: false };
    assert!(matches!(decode::<BatchPage>(&encode(&over).unwrap()), Err(WireError::Malformed(_))));
    // A token list of 5 bytes is no list of ids.
    let ragged = frame_of(&[VERSION, 5, 0, 0, 0, 0, 0]);
    assert!(matches!(decode::<TokenIds>(&ragged), Err(WireError::Malformed(_))));
}

#[test]
fn a_stream_that_ends() {
    let frame = encode(&Op::List).unwrap();
    assert!(matches!(read_frame::<Op>(&mut Cursor::new([])), Ok(None)));
    for cut in 1..frame.len() {
        let got = read_frame::<Op>(&mut Cursor::new(&frame[..cut]));
        assert!(matches!(got, Err(WireError::Truncated { have, .. }) if have == cut), "{cut}: {got:?}");
        let mut decoder = FrameDecoder::new();
        decoder.push(&frame[..cut]);
        assert!(matches!(decoder.pop::<Op>(), Ok(None)));
        assert!(!decoder.is_empty());
    }
}

#[test]
fn a_bad_frame_ends_the_stream() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&frame_of(&[VERSION, 250]));
    decoder.push(&encode(&Op::List).unwrap());
    assert!(matches!(decoder.pop::<Op>(), Err(WireError::Malformed(_))));
    assert!(matches!(decoder.pop::<Op>(), Err(WireError::OutOfStep)));
}

#[test]
fn blocking_helpers_agree_with_the_decoder() {
    let mut stream = Vec::new();
    for op in ops() {
        write_frame(&mut stream, &op).unwrap();
    }
    let mut reader = Cursor::new(&stream);
    for op in ops() {
        assert_eq!(read_frame::<Op>(&mut reader).unwrap(), Some(op));
    }
    assert!(read_frame::<Op>(&mut reader).unwrap().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..Default::default() })]

    #[test]
    fn noise_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut versioned = vec![VERSION];
        versioned.extend_from_slice(&body);
        let frame = frame_of(&versioned);
        // A few of these are values; what is one must encode to bytes that decode to it again.
        if let Ok(value) = decode::<ClientFrame>(&frame) {
            prop_assert!(decode::<ClientFrame>(&encode(&value).unwrap()).is_ok());
        }
        if let Ok(value) = decode::<ServerFrame>(&frame) {
            prop_assert!(decode::<ServerFrame>(&encode(&value).unwrap()).is_ok());
        }
        let _ = decode::<ClientFrame>(&body);
    }

    #[test]
    fn one_changed_byte_never_panics(which in 0usize..21, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let frame = ServerFrame::Reply(Reply { id: 1, body: answers().remove(which) });
        let mut bytes = encode(&frame).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let mut decoder = FrameDecoder::new();
        decoder.push(&bytes);
        let _ = decoder.pop::<ServerFrame>();
        let _ = decode::<ServerFrame>(&bytes);
    }

    #[test]
    fn any_cutting_of_the_stream_gives_the_same_frames(cuts in proptest::collection::vec(1usize..40, 1..200)) {
        let sent: Vec<_> = answers().into_iter().map(|body| ServerFrame::Reply(Reply { id: 1, body })).collect();
        let stream: Vec<u8> = sent.iter().flat_map(|frame| encode(frame).unwrap()).collect();
        let mut decoder = FrameDecoder::new();
        let mut got = Vec::new();
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            decoder.push(piece);
            while let Some(frame) = decoder.pop::<ServerFrame>().unwrap() {
                got.push(frame);
            }
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(decoder.is_empty());
        prop_assert_eq!(got, sent);
    }
}
