//! API keys, as clients of the socket make and revoke them.

use super::{Services, fault};
use crate::keys::KeysError;
use zllm_wire::{ErrorCode, Fault, KeyName, KeySettings};

impl Services {
    pub(crate) async fn add_key(&self, settings: KeySettings) -> Result<String, Fault> {
        let (keys, name, now) = (self.keys.clone(), settings.name.clone(), self.clock.unix_ms() / 1000);
        let key = on_the_disk(move || keys.add(settings, now)).await?;
        tracing::info!(%name, "a key was added");
        Ok(key)
    }

    pub(crate) async fn revoke_key(&self, name: KeyName) -> Result<(), Fault> {
        let (keys, revoked) = (self.keys.clone(), name.clone());
        on_the_disk(move || keys.revoke(&revoked)).await?;
        tracing::info!(%name, "a key was revoked");
        Ok(())
    }
}

/// Does what waits for the disk where nobody else waits for it.
async fn on_the_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeysError> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    let done =
        done.map_err(|error| fault(ErrorCode::Failed, format!("the keys were not changed: {error}")))?;
    Ok(done?)
}
