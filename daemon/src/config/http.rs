//! `[http]`: where HTTP is served, and to whom.

use super::cli::Cli;
use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The table of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpTable {
    listen: Option<String>,
    socket: Option<PathBuf>,
    public: Option<bool>,
    keys: Option<PathBuf>,
    #[serde(default)]
    allow_origins: Vec<String>,
    tls: Option<TlsFiles>,
}

/// `[http.tls]`: PEM files of the server's certificate, those that vouch for it behind it, and of its key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// Where HTTP is served, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpSettings {
    /// Over TCP; `None`: not. Loopback unless the user says otherwise.
    pub(crate) listen: Option<SocketAddr>,
    /// Over a Unix socket.
    pub(crate) socket: Option<PathBuf>,
    /// The file of the API keys; `None`: there is no folder for it.
    pub(crate) keys: Option<PathBuf>,
    /// Web pages of these sites may ask; `*`: of all.
    pub(crate) allow_origins: Vec<String>,
    /// TLS over TCP.
    pub(crate) tls: Option<TlsFiles>,
}

impl HttpSettings {
    /// The file's table with what flags and variables say on top. `state` is the folder of what is kept over a restart.
    ///
    /// # Errors
    /// An address that is none, or that others can reach though nobody said that they may; an origin that is none.
    pub(super) fn merge(
        table: HttpTable,
        cli: &Cli,
        state: Option<PathBuf>,
        beside: impl Fn(PathBuf) -> PathBuf,
    ) -> anyhow::Result<Self> {
        let listen = match cli.http.as_deref().or(table.listen.as_deref()).unwrap_or("127.0.0.1:7143") {
            "off" => None,
            text => {
                let address: SocketAddr = text.parse().with_context(|| {
                    format!("http.listen is {text:?}; an address such as 127.0.0.1:7143, or \"off\", works")
                })?;
                if !address.ip().is_loopback() && table.public != Some(true) {
                    bail!(
                        "http.listen is {address}, which other machines can reach; say http.public = true if they may: they \
                         are answered when they have a key (`zllmctl keys add`)"
                    );
                }
                Some(address)
            }
        };
        for origin in &table.allow_origins {
            ensure!(
                is_origin(origin),
                "http.allow_origins has {origin:?}; origins as browsers write them work, such as \"https://app.example\", or \
                 \"*\" for all"
            );
        }
        Ok(Self {
            listen,
            socket: cli.http_socket.clone().or(table.socket),
            tls: table.tls.map(|TlsFiles { cert, key }| TlsFiles { cert: beside(cert), key: beside(key) }),
            keys: table.keys.map(beside).or_else(|| Some(state?.join("keys.json"))),
            allow_origins: table.allow_origins,
        })
    }

    /// For the log.
    pub(super) fn describe(&self) -> String {
        let tls = if self.tls.is_some() { " with TLS" } else { "" };
        self.listen.map_or("off".to_owned(), |address| format!("{address}{tls}"))
    }
}

/// Whether browsers write an origin so: a scheme and a host, in lower case and without a path.
fn is_origin(text: &str) -> bool {
    text == "*"
        || text.split_once("://").is_some_and(|(scheme, site)| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.:[]".contains(c);
            !scheme.is_empty() && !site.is_empty() && scheme.chars().chain(site.chars()).all(plain)
        })
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        let of = |origin: &str| read(&format!("http.allow_origins = [{origin:?}]\n"), &[]);
        for good in
            ["*", "https://app.example", "http://localhost:3000", "http://[::1]:80", "app://obsidian.md"]
        {
            assert_eq!(of(good).expect(good).http.allow_origins, [good]);
        }
        for bad in
            ["", "app.example", "https://app.example/", "HTTPS://App.example", "https://*.example", "null"]
        {
            let error = of(bad).expect_err(bad).to_string();
            assert!(
                error.contains("http.allow_origins") && error.contains("https://app.example\""),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_are_kept_with_the_state_or_beside_the_configuration() {
        let file = |text: &str| read(text, &[]).expect("valid").http.keys;
        assert_eq!(file("kv.dir = \"/s\"\n"), Some("/s/keys.json".into()));
        assert_eq!(file("http.keys = \"k\"\n"), Some("/etc/zllm/k".into()));
    }
}
