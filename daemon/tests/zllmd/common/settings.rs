//! The configuration of a test's daemon.

use super::{MODEL, models_dir};
use std::path::{Path, PathBuf};

/// What tests change of it.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The file of the model [`MODEL`].
    pub(crate) model: PathBuf,
    pub(crate) kv_budget_bytes: u64,
    pub(crate) ram_budget_bytes: u64,
    pub(crate) kv_format: &'static str,
    /// Folder of the SSD tier.
    pub(crate) kv_dir: PathBuf,
    /// 0 keeps nothing there.
    pub(crate) ssd_budget_bytes: u64,
    pub(crate) save: &'static str,
    /// Lines of `http.KEY = VALUE`.
    pub(crate) http: String,
    /// What stands behind all that.
    pub(crate) more: String,
}

impl Settings {
    /// Small budgets, and the state in a folder of the daemon's scratch folder.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            model: models_dir().join(format!("{MODEL}.gguf")),
            kv_budget_bytes: 96 << 20,
            ram_budget_bytes: 96 << 20,
            kv_format: "i16",
            kv_dir: folder.join("kv"),
            ssd_budget_bytes: 256 << 20,
            save: "sessions",
            http: String::new(),
            more: String::new(),
        }
    }

    pub(super) fn text(&self, folder: &Path) -> String {
        let Self { model, kv_budget_bytes, ram_budget_bytes, kv_format, kv_dir, .. } = self;
        let Self { ssd_budget_bytes, save, http, more, .. } = self;
        let (socket, http_socket) = (folder.join("s"), folder.join("m"));
        format!(
            "socket = {socket:?}\nhttp.listen = \"off\"\nhttp.socket = {http_socket:?}\n{http}threads = 2\n\
             [kv]\ndir = {kv_dir:?}\nssd_budget = {ssd_budget_bytes}\nsave = {save:?}\n\
             [models.{MODEL}]\npath = {model:?}\nload = \"start\"\nkv_format = {kv_format:?}\n\
             kv_budget = {kv_budget_bytes}\nram_budget = {ram_budget_bytes}\n{more}"
        )
    }
}
