//! A keep-alive HTTP connection over TCP: requests, whole answers, and streams whose parts have the time at which they came.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use crate::clock;

/// A server that says nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// To `127.0.0.1:port`.
    pub(super) fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("cannot connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks, and reads the whole answer; its status.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<u16> {
        let (status, chunked, length) = self.begin(method, path, body)?;
        if chunked {
            while self.chunk()?.is_some() {}
        } else {
            let mut rest = vec![0; length];
            self.stream.read_exact(&mut rest)?;
        }
        Ok(status)
    }

    /// Asks for a stream, and reads the head of its answer.
    pub(super) fn stream(&mut self, path: &str, body: &str) -> Result<()> {
        match self.begin("POST", path, body)? {
            (200, true, _) => Ok(()),
            (status, ..) => bail!("a stream was answered with status {status}"),
        }
    }

    /// The next part of a stream and when it was there; `None` after the last.
    pub(super) fn chunk(&mut self) -> Result<Option<(SystemTime, String)>> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let came_at = clock::wall();
        let length = usize::from_str_radix(line.trim_end(), 16).context("a chunk without a length")?;
        let mut text = vec![0; length + 2];
        self.stream.read_exact(&mut text)?;
        text.truncate(length);
        Ok((length > 0).then_some((came_at, String::from_utf8_lossy(&text).into_owned())))
    }

    fn begin(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, bool, usize)> {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        self.stream.get_mut().write_all((head + body).as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no HTTP answer: {line:?}"))?;
        let (mut chunked, mut length) = (false, 0);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let head = line.trim_end().to_ascii_lowercase();
            match head.split_once(": ") {
                None => return Ok((status, chunked, length)),
                Some(("transfer-encoding", "chunked")) => chunked = true,
                Some(("content-length", value)) => length = value.parse()?,
                Some(_) => {}
            }
        }
    }
}
