//! Records survive the round trip, and no other bytes than an encoder's are a record.

use proptest::prelude::*;

use super::*;
use crate::objects::object::PIECE_BYTES;

fn head() -> impl Strategy<Value = Head> {
    let content = prop::option::of((any::<u64>(), any::<u32>(), any::<u64>()));
    let times = (any::<u64>(), any::<Option<u64>>(), any::<u64>());
    (any::<u64>(), (".{0,9}", ".{0,9}", ".{0,9}"), times, content).prop_map(
        |(number, (kind, tenant, id), (created_ms, expires_ms, value_bytes), content)| Head {
            number,
            name: ObjectName { kind, tenant, id },
            created_ms,
            expires_ms,
            value_bytes,
            content: content.map(|(number, pieces, bytes)| Content { number, pieces, bytes }),
        },
    )
}

proptest! {
    #[test]
    fn records_survive_the_round_trip(head in head(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        prop_assert_eq!(decode_head(head.number, &encode_head(&head)), Ok(head.clone()));
        let of_value = Head { value_bytes: bytes.len() as u64, ..head };
        let value = encode_value(of_value.number, &bytes);
        prop_assert_eq!(decode_value(&of_value, &value), Ok(bytes.clone()));
        let longer = Head { value_bytes: bytes.len() as u64 + 1, ..of_value.clone() };
        prop_assert!(decode_value(&longer, &value).is_err());
        let piece = encode_piece(of_value.number, 7, &bytes);
        prop_assert_eq!(decode_piece(of_value.number, 7, &piece), Ok(bytes));
        prop_assert!(decode_piece(of_value.number, 8, &piece).is_err());
        prop_assert!(decode_value(&of_value, &piece).is_err());
    }

    #[test]
    fn a_changed_byte_is_found(head in head(), at in any::<prop::sample::Index>(), bit in 0u32..8) {
        let mut bytes = encode_head(&head);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(decode_head(head.number, &bytes).is_err());
    }

    #[test]
    fn only_what_an_encoder_writes_is_a_head(number in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..90)) {
        let mut record = vec![VERSION];
        record.extend(bytes);
        let sealed = Writer(record).seal(&seal_key(Kind::Head, number, 0));
        if let Ok(decoded) = decode_head(number, &sealed) {
            prop_assert_eq!(encode_head(&decoded), sealed);
        }
    }
}

/// Names whose parts run into each other are others, and so are lists.
#[test]
fn keys_are_of_their_parts() {
    let name = |kind, tenant, id| key_of_name(&ObjectName::new(kind, tenant, id));
    let names = [name("a", "b", "c"), name("ab", "", "c"), name("a", "bc", ""), name("", "ab", "c")];
    let lists = [key_of_list("a", "b"), key_of_list("ab", ""), key_of_list("", "ab")];
    let all: std::collections::HashSet<_> = names.iter().chain(&lists).collect();
    assert_eq!(all.len(), 7);
}

/// 4 bytes of the database, 4 of the value's length and 12 of the key go before a piece that is alone in its page.
#[test]
fn a_full_piece_fills_its_page() {
    assert_eq!(encode_piece(1, 0, &vec![0; PIECE_BYTES]).len() + 4 + 4 + 12, 256 << 10);
}
