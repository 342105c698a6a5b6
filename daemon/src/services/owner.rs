//! Who has submitted a job that is not detached: a connection of the socket, a request over HTTP. When it goes, so do its jobs.

use super::Services;
use crate::scheduler::ConnectionGone;
use crate::scheduler::core::ConnectionId;
use std::sync::Arc;

/// An owner of jobs. The scheduler is told when it is dropped.
pub(crate) struct Owner {
    id: ConnectionId,
    services: Arc<Services>,
    told: bool,
}

impl Owner {
    pub(crate) fn new(services: Arc<Services>) -> Self {
        Self { id: services.connection_id(), services, told: false }
    }

    /// What its jobs are submitted with.
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Tells the scheduler, and waits until it knows.
    pub(crate) async fn gone(&mut self) {
        self.told = true;
        // An error means that the scheduler is gone, and its jobs with it.
        let _ = self.services.scheduler.send(ConnectionGone(self.id)).await;
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.told || self.services.scheduler.try_send(ConnectionGone(self.id)).is_ok() {
            return;
        }
        // The mailbox is full, or the process ends.
        if tokio::runtime::Handle::try_current().is_err() {
            tracing::warn!(connection = self.id.0, "the scheduler was not told that a connection is gone");
            return;
        }
        let (scheduler, id) = (self.services.scheduler.clone(), self.id);
        actix::spawn(async move {
            let _ = scheduler.send(ConnectionGone(id)).await;
        });
    }
}
