//! Memory for packed weights, reserved in one piece and handed out in order.
//!
//! A model has hundreds of matrices of a few megabytes. In memory of its own, each would begin and end within a huge page
//! that the system then does not give; end to end they fill huge pages, all of them. The system clears a page when it is first
//! touched, and that is the greater part of a load: the pool's threads touch whole pages, a few ahead of what is packed. Two
//! threads that pack into the same untouched page would both clear it, and one of them in vain.

use crate::cpu::{
    buffer::{AlignedBuffer, HUGE_PAGE_BYTES},
    pool::Pool,
};
use std::{
    ops::Range,
    sync::{Arc, Weak},
};

/// Where a weight may begin: cache lines and 512-bit vectors.
const ALIGN: usize = 64;
/// Huge pages that each thread touches at a time.
const PAGES_AHEAD: usize = 4;

/// What is left of the memory that was reserved last. It belongs to the weights in it: the arena does not keep it.
pub struct WeightArena {
    /// Until there is the first weight.
    reserved: Option<Arc<AlignedBuffer<u8>>>,
    chunk: Weak<AlignedBuffer<u8>>,
    room: usize,
    used: usize,
    touched: usize,
}

/// A part of an arena's memory.
pub(super) struct Place {
    chunk: Arc<AlignedBuffer<u8>>,
    range: Range<usize>,
}

impl WeightArena {
    /// An arena with room for weights of `bytes` in all, or `None` where the system has not that much. The memory is taken as
    /// it is used, and freed with the last weight in it. Weights that find no room get memory of their own.
    pub fn with_room(bytes: usize) -> Option<Self> {
        let reserved = Arc::new(AlignedBuffer::try_zeroed(bytes)?);
        let chunk = Arc::downgrade(&reserved);
        Some(Self { reserved: Some(reserved), chunk, room: bytes, used: 0, touched: 0 })
    }

    /// Zeros for a weight, if there is memory for them.
    pub(super) fn take(&mut self, pool: &Pool, bytes: usize) -> Option<Place> {
        let start = self.used.next_multiple_of(ALIGN);
        let has_room = self.room.checked_sub(start).is_some_and(|left| left >= bytes);
        let chunk = has_room.then(|| self.reserved.take().or_else(|| self.chunk.upgrade())).flatten();
        let Some(chunk) = chunk else {
            return Self::with_room(bytes)?.take(pool, bytes);
        };
        self.used = start + bytes;
        self.touch(pool, &chunk);
        Some(Place { chunk, range: start..self.used })
    }

    /// Touches all pages up to what is used, and some more, but none that nobody asked for.
    fn touch(&mut self, pool: &Pool, chunk: &AlignedBuffer<u8>) {
        if self.room < HUGE_PAGE_BYTES {
            return;
        }
        while self.touched < self.used {
            let pages = (self.room - self.touched).div_ceil(HUGE_PAGE_BYTES);
            let pages = pages.min(PAGES_AHEAD * pool.threads());
            let first = self.touched;
            pool.split(pages, 1, &|pages, _| {
                for page in pages {
                    let at = first + page * HUGE_PAGE_BYTES;
                    // SAFETY: what was not touched was not handed out.
                    let byte = unsafe { chunk.part_mut(at..at + 1) };
                    // SAFETY: a valid place; volatile, or else the compiler could leave it out.
                    unsafe { std::ptr::from_mut(&mut byte[0]).write_volatile(0) };
                }
            });
            self.touched += pages * HUGE_PAGE_BYTES;
        }
    }
}

impl Place {
    /// How many bytes.
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes_mut` needs the place for itself.
        unsafe { self.chunk.part(self.range.clone()) }
    }

    /// The same to write into.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: an arena hands each byte out once, and a place lends its own as it is lent itself.
        unsafe { self.chunk.part_mut(self.range.clone()) }
    }

    /// The place in parts of `bytes`.
    pub(super) fn split(self, bytes: usize) -> Vec<Self> {
        let starts = self.range.clone().step_by(bytes);
        let part =
            |start| Self { chunk: Arc::clone(&self.chunk), range: start..self.range.end.min(start + bytes) };
        starts.map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_in_order_and_what_finds_no_room_has_its_own() {
        let pool = Pool::new(2);
        let room = 3 * HUGE_PAGE_BYTES + 100;
        let mut arena = WeightArena::with_room(room).unwrap();
        let mut places: Vec<Place> = Vec::new();
        for (i, bytes) in
            [1, HUGE_PAGE_BYTES, 63, 2 * HUGE_PAGE_BYTES - 200, 40, 2000].into_iter().enumerate()
        {
            let mut place = arena.take(&pool, bytes).unwrap();
            assert_eq!(place.len(), bytes);
            assert!(
                place.bytes().iter().all(|&b| b == 0) && place.bytes().as_ptr().addr().is_multiple_of(ALIGN)
            );
            place.bytes_mut().fill(1 + i as u8);
            places.push(place);
        }
        for (i, place) in places.iter().enumerate() {
            assert!(place.bytes().iter().all(|&b| b == 1 + i as u8), "place {i}");
            assert_eq!(std::ptr::eq(&*place.chunk, arena.chunk.as_ptr()), i != 5, "place {i}");
        }
        let before = places.remove(3).split(HUGE_PAGE_BYTES);
        assert_eq!(
            before.iter().map(Place::len).collect::<Vec<_>>(),
            [HUGE_PAGE_BYTES, HUGE_PAGE_BYTES - 200]
        );
        assert!(before.iter().all(|place| place.bytes().iter().all(|&b| b == 4)));
    }

    #[test]
    fn memory_goes_with_the_last_weight_in_it() {
        let pool = Pool::new(1);
        let mut arena = WeightArena::with_room(300).unwrap();
        let places = [100, 100].map(|bytes| arena.take(&pool, bytes).unwrap());
        let chunk = arena.chunk.clone();
        assert_eq!(chunk.strong_count(), 2);
        drop(places);
        assert_eq!(chunk.strong_count(), 0, "the arena does not keep it");
        assert_eq!(arena.take(&pool, 10).unwrap().bytes(), [0; 10], "there is still memory to be had");
    }
}
