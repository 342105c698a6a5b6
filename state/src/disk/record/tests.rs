//! Records survive the round trip, and no other bytes than an encoder's are a record.

use proptest::prelude::*;

use super::*;

fn key() -> impl Strategy<Value = BlockKey> {
    any::<[u8; 32]>().prop_map(BlockKey::from_bytes)
}

fn block_record() -> impl Strategy<Value = BlockRecord> {
    let tokens = prop::collection::vec(any::<u32>(), 1..=BLOCK_TOKENS);
    (key(), any::<u32>(), tokens, 0u64..3_000_000, any::<u64>(), any::<u64>()).prop_map(
        |(parent, position, tokens, bytes, written_ms, number)| {
            let key = parent.child(&tokens);
            let block = StoredBlock { key, parent, position, tokens, bytes, written_ms };
            let checksums = (0..space::chunks(bytes)).map(|chunk| [chunk as u8; CHECKSUM_BYTES]).collect();
            BlockRecord { block, number, checksums }
        },
    )
}

fn manifest() -> impl Strategy<Value = Manifest> {
    let names = (".{0,12}", ".{0,40}", ".{0,20}");
    let lists = (prop::collection::vec(any::<u32>(), 0..300), prop::collection::vec(key(), 0..6));
    (names, key(), lists, any::<[u64; 7]>(), any::<bool>(), any::<Option<u64>>()).prop_map(
        |((tenant, id, model), root, (tokens, keys), figures, pinned, ttl_ms)| {
            let [generation, sampled, turns, hits, hit_tokens, created_ms, last_use_ms] = figures;
            Manifest {
                tenant,
                id,
                model,
                root,
                tokens,
                keys,
                generation,
                sampled,
                turns,
                hits,
                hit_tokens,
                created_ms,
                last_use_ms,
                pinned,
                ttl_ms,
            }
        },
    )
}

proptest! {
    #[test]
    fn a_block_record_survives_the_round_trip(record in block_record()) {
        let bytes = encode_block(&record);
        let block = &record.block;
        let tokens = block.tokens.len() as u64;
        prop_assert_eq!(bytes.len() as u64, block_record_bytes(tokens, space::chunks(block.bytes)));
        prop_assert_eq!(decode_block(*block.key.as_bytes(), &bytes), Ok(record.clone()));
    }

    #[test]
    fn a_manifest_survives_the_round_trip(manifest in manifest()) {
        let bytes = encode_manifest(&manifest);
        prop_assert_eq!(bytes.len() as u64, manifest_record_bytes(&manifest));
        prop_assert_eq!(decode_manifest(session_key(&manifest.tenant, &manifest.id), &bytes), Ok(manifest));
    }

    /// The checksum holds off all changes, so this one is for what lies behind it: bytes that were changed and sealed
    /// again, and bytes that never were a record.
    #[test]
    fn hostile_bytes_are_refused_or_are_the_record_that_they_encode(
        manifest in manifest(),
        record in block_record(),
        noise in prop::collection::vec(any::<u8>(), 0..300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let session = session_key(&manifest.tenant, &manifest.id);
        let block = *record.block.key.as_bytes();
        for (start, key) in [(encode_manifest(&manifest), session), (encode_block(&record), block), (noise, block)] {
            prop_assume!(start.len() > CHECKSUM_BYTES);
            let mut bytes = start.clone();
            changes.iter().for_each(|(at, value)| bytes[at.index(start.len())] = *value);
            bytes.truncate(start.len() - cut.index(start.len()));
            if bytes != start {
                prop_assert!(decode_block(key, &bytes).is_err() && decode_manifest(key, &bytes).is_err());
            }
            let body = bytes.len().saturating_sub(CHECKSUM_BYTES);
            let sealed = Writer(bytes[..body].to_vec()).seal(&key);
            if let Ok(record) = decode_block(key, &sealed) {
                prop_assert_eq!(encode_block(&record), sealed);
            } else if let Ok(manifest) = decode_manifest(key, &sealed) {
                prop_assert_eq!(encode_manifest(&manifest), sealed);
            }
        }
    }
}

#[test]
fn a_later_version_is_refused_by_name() {
    let mut bytes = Writer::new(VERSION);
    bytes.0[0] = VERSION + 1;
    let refused = decode_block([0; 32], &bytes.seal(&[0; 32]));
    assert_eq!(refused, Err("a version that this zllm does not know"));
}

/// A count that claims more than there is must not make anything of that size.
#[test]
fn a_count_beyond_the_bytes_is_refused() {
    let mut bytes = Writer::new(VERSION);
    bytes.string("tenant");
    bytes.u32(u32::MAX);
    let refused = decode_manifest([0; 32], &bytes.seal(&[0; 32]));
    assert_eq!(refused, Err("fewer bytes than its fields need"));
}
