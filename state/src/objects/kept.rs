//! Which objects are kept and for how long, in memory: who has to go is known without a look at the disk.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::object::{Head, ObjectRetention};

/// When an object was made or goes, and its number.
type At = (u64, u64);

/// All objects that are stored.
#[derive(Debug, Default)]
pub(super) struct Kept {
    objects: HashMap<u64, Figures>,
    all: Share,
    /// What each tenant has that has something.
    tenants: HashMap<Arc<str>, Share>,
    /// Those that have a time at which they go.
    by_expiry: BTreeSet<At>,
}

#[derive(Debug, Clone)]
struct Figures {
    tenant: Arc<str>,
    created_ms: u64,
    expires_ms: Option<u64>,
    bytes: u64,
}

/// Objects that are bounded together.
#[derive(Debug, Default)]
struct Share {
    by_age: BTreeSet<At>,
    /// Sum of their bytes.
    bytes: u64,
}

impl Share {
    fn insert(&mut self, number: u64, figures: &Figures) {
        self.by_age.insert((figures.created_ms, number));
        self.bytes = self.bytes.saturating_add(figures.bytes);
    }

    fn remove(&mut self, number: u64, figures: &Figures) {
        assert!(self.by_age.remove(&(figures.created_ms, number)), "each object has its age");
        self.bytes = self.bytes.saturating_sub(figures.bytes);
    }

    fn is_over(&self, max_objects: u64, max_bytes: u64) -> bool {
        self.by_age.len() as u64 > max_objects || self.bytes > max_bytes
    }
}

impl Kept {
    /// Adds an object, in place of what has its number.
    pub(super) fn insert(&mut self, head: &Head) {
        self.remove(head.number);
        let Head { number, created_ms, expires_ms, .. } = *head;
        let tenant = match self.tenants.get_key_value(&*head.name.tenant) {
            Some((tenant, _)) => tenant.clone(),
            None => head.name.tenant.as_str().into(),
        };
        let figures = Figures { tenant: tenant.clone(), created_ms, expires_ms, bytes: head.kept_bytes() };
        self.all.insert(number, &figures);
        self.tenants.entry(tenant).or_default().insert(number, &figures);
        self.by_expiry.extend(expires_ms.map(|expires_ms| (expires_ms, number)));
        self.objects.insert(number, figures);
    }

    /// Forgets an object, if it is there.
    pub(super) fn remove(&mut self, number: u64) {
        let Some(figures) = self.objects.remove(&number) else { return };
        self.all.remove(number, &figures);
        let share = self.tenants.get_mut(&figures.tenant).expect("each object has its tenant");
        share.remove(number, &figures);
        if share.by_age.is_empty() {
            self.tenants.remove(&figures.tenant);
        }
        figures.expires_ms.map(|expires_ms| self.by_expiry.remove(&(expires_ms, number)));
    }

    /// Forgets those that have to go, and says their numbers; some stay whatever they take.
    pub(super) fn expire(
        &mut self,
        retention: &ObjectRetention,
        now_ms: u64,
        staying: &BTreeSet<u64>,
    ) -> Vec<u64> {
        let mut expired = Vec::new();
        while let Some(number) = self.next_to_go(retention, now_ms, staying) {
            self.remove(number);
            expired.push(number);
        }
        expired
    }

    /// What goes because it is its time, else because its tenant has too much, else because it is too old or all have.
    fn next_to_go(&self, retention: &ObjectRetention, now_ms: u64, staying: &BTreeSet<u64>) -> Option<u64> {
        let first_of =
            |ages: &BTreeSet<At>| ages.iter().find(|(_, number)| !staying.contains(number)).copied();
        let is_due = |(expires_ms, _): &At| *expires_ms <= now_ms;
        let is_old = |(created_ms, _): &At| now_ms.saturating_sub(*created_ms) > retention.max_age_ms;
        let is_full = self.all.is_over(retention.max_objects, retention.max_bytes);
        let full_tenant = |share: &&Share| share.is_over(retention.tenant_objects, retention.tenant_bytes);
        first_of(&self.by_expiry)
            .filter(is_due)
            .or_else(|| self.tenants.values().filter(full_tenant).find_map(|share| first_of(&share.by_age)))
            .or_else(|| first_of(&self.all.by_age).filter(|oldest| is_full || is_old(oldest)))
            .map(|(_, number)| number)
    }
}
