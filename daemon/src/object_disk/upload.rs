//! A content on its way in: a piece is in memory, the others are on disk.

use super::thread::Command;
use super::{ObjectDisk, failed};
use tokio::sync::OwnedSemaphorePermit;
use zllm_state::{Content, Object, PIECE_BYTES};
use zllm_wire::Fault;

/// Takes in a content. Dropped before its object is put, it is deleted.
#[derive(Debug)]
pub(crate) struct Upload {
    disk: ObjectDisk,
    /// What is on disk.
    pub(super) content: Option<Content>,
    /// What is not yet: less than a piece.
    rest: Vec<u8>,
    bytes: u64,
    /// `None`: whoever writes it has a bound of its own.
    _place: Option<OwnedSemaphorePermit>,
}

impl Upload {
    pub(super) fn new(disk: ObjectDisk, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { disk, content: None, rest: Vec::new(), bytes: 0, _place: place }
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in more.
    pub(crate) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.rest.len()));
            self.rest.extend_from_slice(now);
            bytes = later;
            if self.rest.len() == PIECE_BYTES {
                self.append().await?;
            }
        }
        Ok(())
    }

    /// Puts an object with all that was taken in.
    pub(crate) async fn put(self, object: Object) -> Result<(), Fault> {
        let disk = self.disk.clone();
        disk.put_uploads(vec![(self, object)], Vec::new()).await
    }

    /// Stores what is in memory.
    pub(super) async fn append(&mut self) -> Result<(), Fault> {
        // Known before anything of it is on disk, so that whatever ends this call, it is deleted.
        let content = match self.content {
            Some(content) => content,
            None => self.disk.with(|store, _| Ok(store.begin_content())).await?,
        };
        self.content = Some(content);
        let piece = std::mem::take(&mut self.rest);
        if !piece.is_empty() {
            self.content = Some(self.disk.with(move |store, _| Ok(store.append(content, &piece)?)).await?);
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(content) = self.content.take() else { return };
        let abandon = Command::Work(Box::new(move |store| {
            let abandoned = store.and_then(|(store, _)| store.abandon(content).map_err(failed));
            if let Err(Fault { message: why, .. }) = abandoned {
                tracing::warn!(why, "an upload that broke off stays on disk until the next start");
            }
        }));
        if self.disk.commands.try_send(abandon).is_err() {
            tracing::warn!("an upload that broke off stays on disk until the next start");
        }
    }
}
