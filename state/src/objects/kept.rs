//! Which objects are kept and for how long, in memory: who has to go is known without a look at the disk.

use std::collections::{BTreeSet, HashMap};

use super::object::{Head, ObjectRetention};

/// All objects that are stored.
#[derive(Debug, Default)]
pub(super) struct Kept {
    objects: HashMap<u64, Figures>,
    /// When each was made, and its number.
    by_age: BTreeSet<(u64, u64)>,
    /// When each goes that has a time for it, and its number.
    by_expiry: BTreeSet<(u64, u64)>,
    /// Sum of their bytes.
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    created_ms: u64,
    expires_ms: Option<u64>,
    bytes: u64,
}

impl Kept {
    /// Adds an object, in place of what has its number.
    pub(super) fn insert(&mut self, head: &Head) {
        self.remove(head.number);
        let Head { number, created_ms, expires_ms, .. } = *head;
        let figures = Figures { created_ms, expires_ms, bytes: head.kept_bytes() };
        self.objects.insert(number, figures);
        self.by_age.insert((created_ms, number));
        self.by_expiry.extend(expires_ms.map(|expires_ms| (expires_ms, number)));
        self.bytes = self.bytes.saturating_add(figures.bytes);
    }

    /// Forgets an object, if it is there.
    pub(super) fn remove(&mut self, number: u64) {
        let Some(Figures { created_ms, expires_ms, bytes }) = self.objects.remove(&number) else { return };
        assert!(self.by_age.remove(&(created_ms, number)), "each object has its age");
        expires_ms.map(|expires_ms| self.by_expiry.remove(&(expires_ms, number)));
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Numbers of those that have to go; some stay whatever they take.
    pub(super) fn expired(
        &self,
        retention: &ObjectRetention,
        now_ms: u64,
        staying: &BTreeSet<u64>,
    ) -> Vec<u64> {
        let (mut objects, mut bytes) = (self.objects.len() as u64, self.bytes);
        let mut expired = BTreeSet::new();
        let due = self.by_expiry.range(..=(now_ms, u64::MAX)).map(|(_, number)| (*number, true));
        let by_age = self
            .by_age
            .iter()
            .map(|(created_ms, number)| (*number, now_ms.saturating_sub(*created_ms) > retention.max_age_ms));
        for (number, must) in due.chain(by_age) {
            if !must && objects <= retention.max_objects && bytes <= retention.max_bytes {
                break;
            }
            if !staying.contains(&number) && expired.insert(number) {
                (objects, bytes) = (objects - 1, bytes.saturating_sub(self.objects[&number].bytes));
            }
        }
        expired.into_iter().collect()
    }
}
