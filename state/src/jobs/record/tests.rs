//! Records survive the round trip, have the bytes that FORMATS.md says, and no other bytes than an encoder's are a record.

use proptest::prelude::*;

use super::*;

fn record() -> impl Strategy<Value = JobRecord> {
    let names = (".{0,9}", ".{0,9}", any::<[Option<String>; 4]>());
    let times = (any::<u64>(), any::<[Option<u64>; 2]>(), any::<[u64; 2]>());
    let small = (0usize..5, 0usize..3, any::<bool>(), any::<u32>(), any::<[u8; 32]>());
    let body = (prop::collection::vec(any::<u32>(), 0..40), prop::collection::vec(any::<u8>(), 0..60));
    (any::<u64>(), names, times, small, body).prop_map(
        |(
            number,
            (tenant, model, names),
            (submitted_ms, limits, began_and_ended),
            small,
            (prompt, request),
        )| {
            let [session, label, batch, key] = names;
            let (state, class, held, attempts, fingerprint) = small;
            let state = JobState::ALL[state];
            JobRecord {
                number,
                tenant,
                model,
                session,
                label,
                batch,
                key,
                class: JobClass::ALL[class],
                held,
                state,
                attempts,
                submitted_ms,
                started_ms: (state != JobState::Queued).then_some(began_and_ended[0]),
                ended_ms: state.is_terminal().then_some(began_and_ended[1]),
                deadline_ms: limits[0],
                start_by_ms: limits[1],
                fingerprint,
                summary: request.iter().take(9).copied().collect(),
                prompt,
                request,
            }
        },
    )
}

/// The head of a job, with a result if it may have one.
fn head(job: &JobRecord, result_bytes: Option<u64>) -> Head {
    let record = JobRecord { prompt: Vec::new(), request: Vec::new(), ..job.clone() };
    let result_bytes = result_bytes.filter(|_| job.state.is_terminal());
    Head { record, body_bytes: job.body_bytes(), result_bytes }
}

proptest! {
    #[test]
    fn records_survive_the_round_trip(job in record(), result_bytes in any::<Option<u64>>()) {
        let head = head(&job, result_bytes);
        prop_assert_eq!(decode_head(job.number, &encode_head(&head)), Ok(head.clone()));
        let body = (job.prompt.clone(), job.request.clone());
        prop_assert_eq!(decode_body(&head, &encode_body(&job)), Ok(body));
        let result = encode_result(job.number, &job.request);
        prop_assert_eq!(decode_result(job.number, &result), Ok(job.request));
    }

    /// Neither changed bytes are a record, nor those of another job, nor one kind of record in the place of another. And
    /// whatever has a right checksum is what an encoder writes, or no record.
    #[test]
    fn no_other_bytes_are_a_record(
        job in record(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (number, head) = (job.number, head(&job, None));
        let [one, two, three] = [encode_head(&head), encode_body(&job), encode_result(number, &job.request)];
        let other = number.wrapping_add(1);
        prop_assert!(decode_head(other, &one).is_err() && decode_result(other, &three).is_err());
        prop_assert!(decode_body(&head, &one).is_err() && decode_result(number, &two).is_err());
        prop_assert!(decode_head(number, &three).is_err());
        let mut bytes = one.clone();
        changes.iter().for_each(|(at, value)| bytes[at.index(one.len())] = *value);
        if bytes != one {
            prop_assert!(decode_head(number, &bytes).is_err());
        }
        bytes.truncate(one.len() - 16);
        let sealed = Writer(bytes).seal(&seal_key(Kind::Head, number));
        if let Ok(decoded) = decode_head(number, &sealed) {
            prop_assert_eq!(encode_head(&decoded), sealed);
        }
    }
}

fn checksum(kind: u8, number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut hash = blake3::Hasher::new();
    hash.update(&[kind]).update(&number.to_le_bytes()).update(bytes);
    hash.finalize().as_bytes()[..16].to_vec()
}

/// The layouts are a stored format: the bytes are compared with FORMATS.md.
#[test]
fn records_have_the_documented_bytes() {
    let job = JobRecord {
        number: 0x0102,
        tenant: "t".into(),
        model: "mo".into(),
        session: None,
        label: Some("la".into()),
        batch: None,
        key: Some("k".into()),
        class: JobClass::Batch,
        held: true,
        state: JobState::Done,
        attempts: 3,
        submitted_ms: 4,
        started_ms: Some(5),
        ended_ms: Some(6),
        deadline_ms: None,
        start_by_ms: Some(7),
        fingerprint: [9; 32],
        summary: b"summary".to_vec(),
        prompt: vec![0x0a, 0x0b0c],
        request: b"request".to_vec(),
    };
    let u64 = |value: u64| value.to_le_bytes();
    let mut bytes = vec![1, 2, 2, 1, 3, 0, 0, 0];
    bytes.extend(u64(4));
    for time in [Some(5), Some(6), None, Some(7)] {
        bytes.push(time.is_some().into());
        bytes.extend(u64(time.unwrap_or(0)));
    }
    bytes.extend(u64(15));
    bytes.push(1);
    bytes.extend(u64(11));
    bytes.extend([9; 32]);
    bytes.extend([1, 0, 0, 0, b't', 2, 0, 0, 0, b'm', b'o']);
    bytes.extend([0, 0, 0, 0, 0]);
    bytes.extend([1, 2, 0, 0, 0, b'l', b'a']);
    bytes.extend([0, 0, 0, 0, 0]);
    bytes.extend([1, 1, 0, 0, 0, b'k']);
    bytes.extend(b"summary");
    bytes.extend(checksum(0, 0x0102, &bytes));
    assert_eq!(encode_head(&head(&job, Some(11))), bytes);

    let mut bytes = vec![1, 2, 0, 0, 0, 0x0a, 0, 0, 0, 0x0c, 0x0b, 0, 0];
    bytes.extend(b"request");
    bytes.extend(checksum(1, 0x0102, &bytes));
    assert_eq!(encode_body(&job), bytes);

    let mut bytes = b"\x01result".to_vec();
    bytes.extend(checksum(2, 0x0102, &bytes));
    assert_eq!(encode_result(0x0102, b"result"), bytes);
}
