//! Objects to store, each of a number: the same in each run, so what is read can be compared with what is made again.

use zllm_state::{Object, ObjectName, ObjectRetention};

use crate::random::Random;

/// Nothing expires.
pub(crate) const FOREVER: ObjectRetention = ObjectRetention {
    max_age_ms: u64::MAX,
    max_objects: u64::MAX,
    max_bytes: u64::MAX,
    tenant_objects: u64::MAX,
    tenant_bytes: u64::MAX,
};

/// An object without a content; some go at a time of their own.
pub(crate) fn object(number: u64) -> Object {
    let mut random = Random::new(number);
    let kind = ["answer", "file"][random.below(2) as usize];
    let tenant = ["", "tenant"][random.below(2) as usize];
    Object {
        name: ObjectName::new(kind, tenant, &format!("id {number}")),
        created_ms: 1000 + number,
        expires_ms: (random.below(5) == 0).then_some(4000 + number * 20),
        value: bytes(number, random.below(3000) as usize),
        content: None,
    }
}

/// Noise of a seed.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.next() as u8).collect()
}

/// The pieces of the content of an object of the fixture.
pub(crate) fn pieces(number: u64) -> Vec<Vec<u8>> {
    (0..number % 4).map(|piece| bytes(number * 10 + piece, 900 * piece as usize + 1)).collect()
}

/// What the files in `testdata/objects` hold: 12 objects, some with contents. Never to be changed: the files were written
/// with it.
pub(crate) fn fixture() -> Vec<(Object, Vec<Vec<u8>>)> {
    (101..=112).map(|number| (Object { expires_ms: None, ..object(number) }, pieces(number))).collect()
}
