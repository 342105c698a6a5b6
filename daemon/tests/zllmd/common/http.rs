//! Just enough HTTP to scrape over a Unix socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// An HTTP answer.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// GETs `target`; `None` when nobody listens.
pub(crate) fn get(socket: &Path, target: &str) -> Option<HttpAnswer> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(super::PATIENCE)).expect("a timeout");
    // The sending side stays open: the server takes a half-closed client for a gone one.
    write!(stream, "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    assert!(!head.to_ascii_lowercase().contains("chunked"), "the test's client does not read chunks");
    Some(HttpAnswer { status, body: body.to_owned() })
}

/// The value of the sample `name`, labels included.
pub(crate) fn sample(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}
