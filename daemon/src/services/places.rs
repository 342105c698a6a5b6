//! Places of which work that nobody waits for may have a part, so that it keeps nobody out.

use tokio::sync::{Semaphore, SemaphorePermit};
use zllm_wire::Class;

/// Places for requests of all classes.
pub(crate) struct Places {
    all: Semaphore,
    /// Those of class batch have one of these beside.
    batch: Semaphore,
}

/// A place, until it is dropped.
pub(crate) struct Place<'a> {
    _all: SemaphorePermit<'a>,
    _batch: Option<SemaphorePermit<'a>>,
}

impl Places {
    /// So many, of which class batch may have a part.
    pub(crate) fn new(all: usize, batch: usize) -> Self {
        assert!((1..all).contains(&batch), "{batch} of {all} places");
        Self { all: Semaphore::new(all), batch: Semaphore::new(batch) }
    }

    /// A place, if there is one for this class.
    pub(crate) fn take(&self, class: Class) -> Option<Place<'_>> {
        let batch = match class {
            Class::Batch => Some(self.batch.try_acquire().ok()?),
            Class::Interactive | Class::Normal => None,
        };
        Some(Place { _all: self.all.try_acquire().ok()?, _batch: batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_their_part_and_not_more() {
        let places = Places::new(4, 1);
        let batch = places.take(Class::Batch).expect("its part");
        assert!(places.take(Class::Batch).is_none());
        let others: Vec<_> = (0..3).map(|_| places.take(Class::Normal).expect("a place")).collect();
        assert!(places.take(Class::Interactive).is_none());
        drop(batch);
        assert!(places.take(Class::Interactive).is_some());
        drop(others);
        assert!(places.take(Class::Batch).is_some());
    }
}
