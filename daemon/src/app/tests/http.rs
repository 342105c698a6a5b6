//! HTTP beside the socket, for tests on simulated devices.

use super::*;
use serde_json::Value;

/// An answer of HTTP.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl HttpAnswer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &'_ str| {
            line.split_once(": ").filter(|(known, _)| known.eq_ignore_ascii_case(name)).is_some()
        };
        self.head.lines().find(|line| named(line))?.split_once(": ").map(|(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A daemon with HTTP on a Unix socket, which the test gets beside the other one.
pub(super) fn with_http<F: Future<Output = ()>>(
    change: impl FnOnce(&mut Config) -> Vec<FakeDevice>,
    test: impl FnOnce(std::path::PathBuf, std::path::PathBuf) -> F,
) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut config = config(folder.path(), "5");
    let http = folder.path().join("h");
    config.http.socket = Some(http.clone());
    let devices = change(&mut config);
    let ended = run_on(config, devices, |socket| test(socket, http));
    assert_eq!(ended.expect("a good end"), Ended::Orderly);
}

/// Asks and reads to the end; a body that is null is none.
pub(super) async fn ask(socket: &Path, method: &str, path: &str, body: Value) -> HttpAnswer {
    let mut stream = UnixStream::connect(socket).await.expect("it listens");
    stream.write_all(&request(method, path, body)).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    HttpAnswer { status: status.expect("a status"), head: head.to_owned(), body: body.to_owned() }
}

pub(super) fn request(method: &str, path: &str, body: Value) -> Vec<u8> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
