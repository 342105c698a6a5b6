//! Memory for packed weights, reserved in one piece and handed out in order.
//!
//! A model has hundreds of matrices of a few megabytes. In memory of its own, each would begin and end within a huge page
//! that the system then does not give; end to end they fill huge pages, all of them.
//!
//! But not at load. A virtual machine that gives its free memory back to its host gives it in huge pages; a new one has to be
//! found by the host again, which takes fifty times as long as clearing one that the machine still has (docs/PERFORMANCE.md).
//! Small pages come from the pieces in between, which the machine has kept. So weights are packed into small pages, and
//! [`WeightArena::settle`] moves them into huge ones when there is time.

use crate::cpu::buffer::{AlignedBuffer, Pages};
use std::{
    ops::Range,
    sync::{Arc, Weak},
};

/// Where a weight may begin: cache lines and 512-bit vectors.
const ALIGN: usize = 64;

/// What is left of the memory that was reserved last. It belongs to the weights in it: the arena does not keep it.
#[derive(Default)]
pub struct WeightArena {
    /// Until there is the first weight.
    reserved: Option<Arc<AlignedBuffer<u8>>>,
    chunk: Weak<AlignedBuffer<u8>>,
    room: usize,
    used: usize,
    /// Memory that is not settled yet, and how many huge pages of it are.
    unsettled: Vec<(Weak<AlignedBuffer<u8>>, usize)>,
}

/// A part of an arena's memory.
pub(super) struct Place {
    chunk: Arc<AlignedBuffer<u8>>,
    range: Range<usize>,
}

impl WeightArena {
    /// Takes memory for weights of `bytes` in all; says whether the system has that much. It is touched as it is used, and
    /// freed with the last weight in it. Weights that find no room get memory of their own.
    pub fn reserve(&mut self, bytes: usize) -> bool {
        let reserved = AlignedBuffer::with_pages(bytes, Pages::Small).map(Arc::new);
        self.chunk = reserved.as_ref().map(Arc::downgrade).unwrap_or_default();
        (self.room, self.used) = (if reserved.is_some() { bytes } else { 0 }, 0);
        self.unsettled.retain(|(chunk, _)| chunk.strong_count() > 0);
        self.unsettled.push((self.chunk.clone(), 0));
        self.reserved = reserved;
        self.reserved.is_some()
    }

    /// Moves the next two megabytes of the weights into a huge page: some milliseconds, in which no step should wait. Says
    /// whether there may be more to do.
    pub fn settle(&mut self) -> bool {
        while let Some((chunk, next)) = self.unsettled.last_mut() {
            if chunk.upgrade().is_some_and(|chunk| chunk.settle(*next)) {
                *next += 1;
                return true;
            }
            self.unsettled.pop();
        }
        false
    }

    /// Zeros for a weight, if there is memory for them.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let start = self.used.next_multiple_of(ALIGN);
        let has_room = self.room.checked_sub(start).is_some_and(|left| left >= bytes);
        let chunk = has_room.then(|| self.reserved.take().or_else(|| self.chunk.upgrade())).flatten();
        let Some(chunk) = chunk else {
            return Some(Place { chunk: Arc::new(AlignedBuffer::try_zeroed(bytes)?), range: 0..bytes });
        };
        self.used = start + bytes;
        Some(Place { chunk, range: start..self.used })
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
    use crate::cpu::buffer::HUGE_PAGE_BYTES;

    #[test]
    fn places_lie_in_order_and_what_finds_no_room_has_its_own() {
        let room = 3 * HUGE_PAGE_BYTES + 100;
        let mut arena = WeightArena::default();
        assert!(arena.reserve(room));
        let mut places: Vec<Place> = Vec::new();
        for (i, bytes) in
            [1, HUGE_PAGE_BYTES, 63, 2 * HUGE_PAGE_BYTES - 200, 40, 2000].into_iter().enumerate()
        {
            let mut place = arena.take(bytes).unwrap();
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
        let mut arena = WeightArena::default();
        assert!(arena.reserve(300));
        let places = [100, 100].map(|bytes| arena.take(bytes).unwrap());
        let chunk = arena.chunk.clone();
        assert_eq!(chunk.strong_count(), 2);
        drop(places);
        assert_eq!(chunk.strong_count(), 0, "the arena does not keep it");
        assert_eq!(arena.take(10).unwrap().bytes(), [0; 10], "there is still memory to be had");
    }

    #[test]
    fn what_is_not_to_be_had_is_refused() {
        let mut arena = WeightArena::default();
        assert!(!arena.reserve(usize::MAX / 2));
        assert_eq!(arena.take(10).unwrap().len(), 10, "a weight still has memory of its own");
        assert!(!arena.settle());
    }

    /// Of the memory around `place`, in bytes of huge pages, as the system tells; `None` where it does not.
    #[cfg(target_os = "linux")]
    fn huge_bytes(place: &Place) -> Option<usize> {
        let address = place.bytes().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut lines = maps.lines();
        lines.find(|line| {
            let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
            let [from, to] = match bounds {
                Some((from, to)) => [from, to].map(|bound| usize::from_str_radix(bound, 16).ok()),
                None => [None, None],
            };
            from.zip(to).is_some_and(|(from, to)| (from..to).contains(&address))
        })?;
        let line = lines.find_map(|line| line.strip_prefix("AnonHugePages:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? * 1024)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn settling_moves_whole_pages_of_all_models_and_changes_no_byte() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let has_collapse = (numbers.next(), numbers.next()) >= (Some(6), Some(1));
        let mut arena = WeightArena::default();
        let byte = |i: usize| (i * 7 % 251) as u8;
        let mut places = Vec::new();
        // Large enough that the allocator maps memory of their own for two of them.
        for pages in [17, 0, 18] {
            let bytes = pages * HUGE_PAGE_BYTES + 1000;
            assert!(arena.reserve(bytes));
            let mut place = arena.take(bytes).unwrap();
            place.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
            assert!(pages == 0 || huge_bytes(&place) == Some(0), "small at first");
            places.push((pages, place));
        }
        assert_eq!(std::iter::from_fn(|| arena.settle().then_some(())).count(), 17 + 18);
        for (pages, place) in &places {
            assert!(place.bytes().iter().enumerate().all(|(i, b)| *b == byte(i)));
            // The system may have no huge page left for some of them.
            let expected = if has_collapse { pages / 2 * HUGE_PAGE_BYTES } else { 0 };
            assert!(huge_bytes(place) >= Some(expected), "{pages} pages: {:?}", huge_bytes(place));
        }
    }
}
