//! A disk in memory that stops at a chosen sync, and shows what a power cut then may leave.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::random::Random;

/// The unit that a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Op {
    Write(usize, Vec<u8>),
    Len(usize),
}

#[derive(Debug, Default)]
struct Inner {
    /// What is safe.
    durable: Vec<u8>,
    /// What was done since the last sync.
    pending: Vec<Op>,
    /// What a reader sees.
    live: Vec<u8>,
    syncs: u64,
    /// The sync at which it stops; from then on every call fails.
    stops_at_sync: Option<u64>,
    calls: u64,
    /// The call, of any kind, at which it stops.
    stops_at_call: Option<u64>,
    /// It has no room beyond this length.
    capacity: Option<usize>,
    stopped: bool,
    /// A sync says that it is done and does nothing.
    lies: bool,
}

/// The disk; a clone is the same disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlakyDisk(Arc<Mutex<Inner>>);

impl FlakyDisk {
    pub(crate) fn of(image: Vec<u8>) -> Self {
        let inner = Inner { durable: image.clone(), live: image, ..Inner::default() };
        Self(Arc::new(Mutex::new(inner)))
    }

    pub(crate) fn stop_at_sync(self, sync: u64) -> Self {
        self.inner().stops_at_sync = Some(sync);
        self
    }

    pub(crate) fn full_at(self, capacity: usize) -> Self {
        self.set_capacity(Some(capacity));
        self
    }

    pub(crate) fn set_capacity(&self, capacity: Option<usize>) {
        self.inner().capacity = capacity;
    }

    /// It stops at the call that comes after so many others.
    pub(crate) fn stop_after_calls(&self, calls: u64) {
        let mut inner = self.inner();
        inner.stops_at_call = Some(inner.calls + calls);
    }

    /// It works again, with all that was written or with what was synced alone.
    pub(crate) fn work_again(&self, keeps_unsynced: bool) {
        let inner = &mut *self.inner();
        (inner.stopped, inner.stops_at_sync, inner.stops_at_call) = (false, None, None);
        if !keeps_unsynced {
            inner.live = inner.durable.clone();
            inner.pending.clear();
        }
    }

    pub(crate) fn lying(self) -> Self {
        self.inner().lies = true;
        self
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.inner().syncs
    }

    /// What was synced, and of the rest none.
    pub(crate) fn durable(&self) -> Vec<u8> {
        self.inner().durable.clone()
    }

    /// All that was written, synced or not.
    pub(crate) fn live(&self) -> Vec<u8> {
        self.inner().live.clone()
    }

    /// What was synced, and of the rest a random half of the sectors.
    pub(crate) fn after_power_cut(&self, seed: u64) -> Vec<u8> {
        let (inner, mut random) = (self.inner(), Random::new(seed));
        let mut image = inner.durable.clone();
        for op in &inner.pending {
            apply(&mut image, op, || random.below(2) == 0);
        }
        image
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn working(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let mut inner = self.inner();
        inner.calls += 1;
        inner.stopped |= inner.stops_at_call == Some(inner.calls - 1);
        if inner.stopped { Err(io::Error::other("the disk has stopped")) } else { Ok(inner) }
    }
}

fn apply(image: &mut Vec<u8>, op: &Op, mut arrives: impl FnMut() -> bool) {
    match op {
        Op::Len(length) => image.resize(*length, 0),
        Op::Write(offset, data) => {
            for (sector, at) in data.chunks(SECTOR).zip((*offset..).step_by(SECTOR)) {
                if arrives() && at + sector.len() <= image.len() {
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
    }
}

impl redb::StorageBackend for FlakyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.working()?.live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (inner, offset) = (self.working()?, offset as usize);
        let end = offset.checked_add(out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(inner.live.get(offset..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut inner = self.working()?;
        if inner.capacity.is_some_and(|capacity| length as usize > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.live.resize(length as usize, 0);
        inner.pending.push(Op::Len(length as usize));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut inner, offset) = (self.working()?, offset as usize);
        inner.live[offset..offset + data.len()].copy_from_slice(data);
        inner.pending.push(Op::Write(offset, data.to_vec()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.working()?;
        inner.syncs += 1;
        if inner.stops_at_sync == Some(inner.syncs) {
            inner.stopped = true;
            return Err(io::Error::other("the disk has stopped"));
        }
        if !inner.lies {
            let inner = &mut *inner;
            for op in inner.pending.drain(..) {
                apply(&mut inner.durable, &op, || true);
            }
        }
        Ok(())
    }
}
