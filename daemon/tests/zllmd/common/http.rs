//! Just enough HTTP for a test, over a Unix socket or TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// An HTTP answer.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// Names in lower case.
    head: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of each server-sent event.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body
            .split("\n\n")
            .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
            .collect()
    }
}

/// GETs `target`; `None` when nobody listens.
pub(crate) fn get(socket: &Path, target: &str) -> Option<HttpAnswer> {
    ask(socket, "GET", target, b"")
}

/// GETs `target` with more header lines, each with its end.
pub(crate) fn get_with(socket: &Path, target: &str, lines: &str) -> HttpAnswer {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    stream.set_read_timeout(Some(super::PATIENCE)).expect("a timeout");
    let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).expect("a request");
    read(&mut BufReader::new(stream)).expect("an answer")
}

/// POSTs bytes to `target`.
pub(crate) fn post(socket: &Path, target: &str, body: impl AsRef<[u8]>) -> HttpAnswer {
    ask(socket, "POST", target, body.as_ref()).expect("an answer")
}

/// Asks with any method.
pub(crate) fn ask(socket: &Path, method: &str, target: &str, body: &[u8]) -> Option<HttpAnswer> {
    read(&mut BufReader::new(send(socket, method, target, body)?))
}

/// POSTs a form of fields: names, names of files, contents.
pub(crate) fn post_form(socket: &Path, target: &str, fields: &[(&str, Option<&str>, &[u8])]) -> HttpAnswer {
    const BOUNDARY: &str = "----a-boundary-of-this-test";
    let mut body = Vec::new();
    for (name, file, content) in fields {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    let mut stream = connect(socket).expect("a connection");
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    write_as(&mut stream, "POST", target, &kind, &body).expect("a request");
    read(&mut BufReader::new(stream)).expect("an answer")
}

/// Sends a request and does not wait for its answer.
pub(crate) fn send(socket: &Path, method: &str, target: &str, body: &[u8]) -> Option<UnixStream> {
    let mut stream = connect(socket)?;
    write(&mut stream, method, target, body)?;
    Some(stream)
}

fn connect(socket: &Path) -> Option<UnixStream> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(super::PATIENCE)).expect("a timeout");
    Some(stream)
}

/// The same over TCP.
pub(crate) fn send_tcp(port: u16, method: &str, target: &str, body: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(super::PATIENCE)).expect("a timeout");
    write(&mut stream, method, target, body)?;
    Some(stream)
}

fn write(stream: &mut impl Write, method: &str, target: &str, body: &[u8]) -> Option<()> {
    write_as(stream, method, target, "application/json", body)
}

fn write_as(
    stream: &mut impl Write,
    method: &str,
    target: &str,
    content_type: &str,
    body: &[u8],
) -> Option<()> {
    // The sending side stays open: the server takes a half-closed client for a gone one.
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    // One that is refused before its end may find nobody who reads the rest.
    let _ = stream.write_all(body);
    Some(())
}

/// Reads an answer up to the end of the stream.
pub(crate) fn read(stream: &mut BufReader<impl Read>) -> Option<HttpAnswer> {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        Some(line.trim_end().to_owned())
    };
    let status = line()?.split(' ').nth(1)?.parse().ok()?;
    let mut head = Vec::new();
    while let Some((name, value)) = line()?.split_once(": ") {
        head.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let chunked = head.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let mut body = Vec::new();
    if chunked {
        loop {
            let mut length = String::new();
            stream.read_line(&mut length).ok()?;
            let length = u64::from_str_radix(length.trim_end(), 16).ok()?;
            stream.by_ref().take(length).read_to_end(&mut body).ok()?;
            stream.read_line(&mut String::new()).ok()?;
            if length == 0 {
                break;
            }
        }
    } else {
        stream.read_to_end(&mut body).ok()?;
    }
    Some(HttpAnswer { status, head, body: String::from_utf8(body).ok()? })
}

/// The value of the sample `name`, labels included.
pub(crate) fn sample(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}
