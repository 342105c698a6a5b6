//! `[http]`: where HTTP is served.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The table of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpTable {
    pub(super) listen: Option<String>,
    pub(super) socket: Option<PathBuf>,
    pub(super) public: Option<bool>,
}

/// Where HTTP is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpSettings {
    /// Over TCP; `None`: not. Loopback unless the user says otherwise.
    pub(crate) listen: Option<SocketAddr>,
    /// Over a Unix socket.
    pub(crate) socket: Option<PathBuf>,
}

impl HttpSettings {
    /// The file's table with what flags and variables say on top.
    ///
    /// # Errors
    /// An address that is none, or that others can reach though nobody said that they may.
    pub(super) fn merge(
        table: HttpTable,
        listen: Option<&str>,
        socket: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let listen = match listen.or(table.listen.as_deref()).unwrap_or("127.0.0.1:7143") {
            "off" => None,
            text => {
                let address: SocketAddr = text.parse().with_context(|| {
                    format!("http.listen is {text:?}; an address such as 127.0.0.1:7143, or \"off\", works")
                })?;
                if !address.ip().is_loopback() && table.public != Some(true) {
                    bail!(
                        "http.listen is {address}, which other machines can reach; say http.public = true if they may, for \
                         there are no keys yet and whoever reaches it may do everything"
                    );
                }
                Some(address)
            }
        };
        Ok(Self { listen, socket: socket.or(table.socket) })
    }

    /// For the log.
    pub(super) fn describe(&self) -> String {
        self.listen.map_or("off".to_owned(), |address| address.to_string())
    }
}
