//! Our own API, under `/zllm/v1`: what the socket protocol has, each operation by the same service, in the protocol's own types
//! as JSON. Stopping the daemon and looking into files by their paths are the socket's alone.

mod jobs;
mod models;
mod queue;
mod sessions;

use super::router::Router;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zllm_wire::{SessionId, SessionRef, Tenant};

/// Where it is.
pub(super) fn routes(router: &mut Router) {
    models::routes(router);
    sessions::routes(router);
    jobs::routes(router);
    queue::routes(router);
}

/// What was asked is done, and there is no more to say of it.
#[derive(Debug, Serialize, JsonSchema)]
struct Done {}

/// Whose session or batch is meant.
#[derive(Debug, Deserialize, JsonSchema)]
struct Whose {
    /// Without it those are meant that have no tenant.
    tenant: Option<Tenant>,
}

impl Whose {
    fn session(self, id: SessionId) -> SessionRef {
        SessionRef { tenant: self.tenant, id }
    }
}
