//! The lines of a batch's file: read piece by piece, and what each asks for.

use super::record::LineError;
use crate::http::problem::Problem;
use crate::limits::{HTTP_BODY_BYTES, MAX_BATCH_ID_BYTES};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Which API a batch asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
    Embeddings,
    Responses,
}

/// The one of this path.
///
/// # Errors
/// There is none, or none for batches.
pub(super) fn endpoint(path: &str) -> Result<Endpoint, Problem> {
    match path {
        "/v1/chat/completions" => Ok(Endpoint::Chat),
        "/v1/completions" => Ok(Endpoint::Completions),
        "/v1/embeddings" => Ok(Endpoint::Embeddings),
        "/v1/responses" => Ok(Endpoint::Responses),
        _ => {
            let served =
                "\"/v1/chat/completions\", \"/v1/completions\", \"/v1/embeddings\" and \"/v1/responses\" are";
            Err(Problem::of("endpoint", format!("endpoint is not served in batches; {served}")))
        }
    }
}

/// One request.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    /// The client's name for it.
    pub(super) custom_id: String,
    method: String,
    url: String,
    /// As it stands there: it is read when it is asked.
    pub(super) body: Box<RawValue>,
}

impl Line {
    /// Reads line `number`, which is for the endpoint of this path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(number: u64, text: &[u8], path: &str) -> Result<Self, LineError> {
        let wrong = |code: &str, message: String, param: Option<&str>| LineError {
            code: code.to_owned(),
            message,
            param: param.map(str::to_owned),
            line: Some(number),
        };
        let line: Self = serde_json::from_slice(text)
            .map_err(|error| wrong("invalid_json_line", format!("the line is no request: {error}"), None))?;
        if line.custom_id.is_empty() || line.custom_id.len() > MAX_BATCH_ID_BYTES {
            let message =
                format!("custom_id has {} bytes; 1 to {MAX_BATCH_ID_BYTES} work", line.custom_id.len());
            return Err(wrong("invalid_custom_id", message, Some("custom_id")));
        }
        if line.method != "POST" {
            return Err(wrong("invalid_method", "method is not \"POST\"".to_owned(), Some("method")));
        }
        if line.url != path {
            return Err(wrong("mismatched_url", format!("url is not the batch's, {path:?}"), Some("url")));
        }
        Ok(line)
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.body.get().len() + self.custom_id.len() + self.url.len()
    }
}

/// Cuts pieces into lines.
pub(super) struct Lines<S> {
    pieces: S,
    /// Bytes that are read; those before `at` are given out.
    held: Vec<u8>,
    at: usize,
    over: bool,
    number: u64,
}

impl<S: Stream<Item = Result<Vec<u8>, Problem>> + Unpin> Lines<S> {
    pub(super) fn new(pieces: S) -> Self {
        Self { pieces, held: Vec::new(), at: 0, over: false, number: 0 }
    }

    /// The next line that is not blank, and its number from 1; `None` after the last.
    ///
    /// # Errors
    /// A line that is too long, or what a piece's reading failed with.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, &[u8])>, Problem> {
        loop {
            let mut searched = self.at;
            let end = loop {
                if let Some(end) = self.held[searched..].iter().position(|byte| *byte == b'\n') {
                    break searched + end;
                }
                searched = self.held.len();
                if self.over {
                    break searched;
                }
                if searched - self.at > HTTP_BODY_BYTES {
                    let message = format!("line {} has more than {HTTP_BODY_BYTES} bytes", self.number + 1);
                    return Err(Problem::of("input_file_id", message));
                }
                match self.pieces.next().await {
                    Some(piece) => {
                        self.held.drain(..self.at);
                        searched -= self.at;
                        self.at = 0;
                        self.held.extend_from_slice(&piece?);
                    }
                    None => self.over = true,
                }
            };
            if self.over && self.at >= self.held.len() {
                return Ok(None);
            }
            let line = self.at..end;
            self.at = (end + 1).min(self.held.len());
            self.number += 1;
            if !self.held[line.clone()].trim_ascii().is_empty() {
                return Ok(Some((self.number, self.held[line].trim_ascii())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    async fn lines(text: &str, piece_bytes: usize) -> Vec<(u64, String)> {
        let pieces: Vec<_> = text.as_bytes().chunks(piece_bytes).map(|piece| Ok(piece.to_vec())).collect();
        let mut lines = Lines::new(stream::iter(pieces));
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next().await.expect("lines") {
            found.push((number, String::from_utf8(line.to_vec()).expect("text")));
        }
        found
    }

    #[tokio::test]
    async fn lines_do_not_depend_on_the_pieces() {
        for text in ["", "\n", "a", "a\n", "a\r\n\n  \nbb\nccc", "ä\n\nö\n"] {
            let wanted: Vec<(u64, String)> = (1..)
                .zip(text.lines())
                .map(|(number, line)| (number, line.trim().to_owned()))
                .filter(|(_, line)| !line.is_empty())
                .collect();
            for piece_bytes in 1..8 {
                assert_eq!(lines(text, piece_bytes).await, wanted, "{text:?} in {piece_bytes}");
            }
        }
    }

    #[test]
    fn wrong_lines_say_what_is_wrong() {
        let parse = |text: &str| Line::parse(7, text.as_bytes(), "/v1/completions");
        let good = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"x": 1}}"#;
        assert_eq!(parse(good).expect("a line").body.get(), r#"{"x": 1}"#);
        for (text, code) in [
            ("{", "invalid_json_line"),
            ("{}", "invalid_json_line"),
            (&good.replace("\"a\"", "\"\""), "invalid_custom_id"),
            (&good.replace("POST", "GET"), "invalid_method"),
            (&good.replace("/v1/completions", "/v1/embeddings"), "mismatched_url"),
        ] {
            let error = parse(text).expect_err("a wrong line");
            assert_eq!((error.code.as_str(), error.line), (code, Some(7)), "{text}");
        }
    }
}
