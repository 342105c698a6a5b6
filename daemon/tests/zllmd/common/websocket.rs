//! Just enough of a WebSocket client for a test (RFC 6455), over a Unix socket.

use super::PATIENCE;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// An open connection. Dropping it closes the socket without a word.
pub(crate) struct WebSocket(BufReader<UnixStream>);

const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;

impl WebSocket {
    /// Opens one at `target`.
    pub(crate) fn open(socket: &Path, target: &str) -> Self {
        let mut stream = UnixStream::connect(socket).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let (mut reader, mut lines) = (BufReader::new(stream), Vec::<String>::new());
        while lines.last().is_none_or(|line| !line.trim().is_empty()) {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).expect("a line") > 0, "{lines:?}");
            lines.push(line);
        }
        assert!(lines[0].contains(" 101 "), "{lines:?}");
        // The answer to the key, as the RFC's own example has it.
        assert!(lines.iter().any(|line| line.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")), "{lines:?}");
        Self(reader)
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.frame(TEXT, text.as_bytes());
    }

    pub(crate) fn close(mut self) {
        self.frame(CLOSE, &[]);
        assert_eq!(self.receive(), None);
    }

    /// The next text; `None` when the other side closes.
    pub(crate) fn receive(&mut self) -> Option<String> {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head).ok()?;
            let length = match head[1] {
                126 => u64::from(u16::from_be_bytes(self.bytes())),
                127 => u64::from_be_bytes(self.bytes()),
                short => short.into(),
            };
            let mut payload = Vec::new();
            self.0.by_ref().take(length).read_to_end(&mut payload).expect("a frame");
            match head[0] & 15 {
                TEXT => return Some(String::from_utf8(payload).expect("UTF-8")),
                CLOSE => return None,
                PING => self.frame(10, &payload),
                _ => {}
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("a length");
        bytes
    }

    /// A client masks what it sends; a mask of zeros is one.
    fn frame(&mut self, kind: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match payload.len() {
            short @ ..126 => frame.push(0x80 | short as u8),
            middle @ ..65536 => {
                frame.push(0x80 | 126);
                frame.extend((middle as u16).to_be_bytes());
            }
            long => {
                frame.push(0x80 | 127);
                frame.extend((long as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(payload);
        // One that is closed already may find nobody who reads.
        let _ = self.0.get_mut().write_all(&frame);
    }
}
