//! A batch's file: read whole, every line proven before anything is sent.
//!
//! Line numbers begin with 1 and count empty lines, as editors do; empty lines are no requests.

use super::body::{Body, Endpoint};
use crate::failure::Failure;
use crate::limits::{MAX_BATCH_FILE_BYTES, MAX_FAULTS_TOLD, MAX_REQUEST_BYTES};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::Read,
    ops::Range,
    path::Path,
};
use zllm_wire::{BatchId, IdempotencyKey, limits::MAX_BATCH_JOBS};

/// The requests of a file.
#[derive(Debug)]
pub(crate) struct Input {
    /// The batch that they are.
    pub(crate) batch: BatchId,
    /// The models that they name.
    pub(crate) models: BTreeSet<String>,
    text: String,
    lines: Vec<Line>,
}

/// One request.
#[derive(Debug)]
struct Line {
    number: usize,
    place: Range<usize>,
    custom_id: String,
    endpoint: Endpoint,
}

impl Input {
    /// Reads a file and proves each line.
    ///
    /// # Errors
    /// All lines that are no requests, by number; the first [`MAX_FAULTS_TOLD`] of them.
    pub(crate) fn read(path: &Path, id: Option<BatchId>) -> Result<Self, Failure> {
        let bytes = read_bytes(path)?;
        let batch = id.unwrap_or_else(|| derived_id(&bytes));
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Failure::Refused(format!("{} is no text: byte {at} is not UTF-8", path.display()))
        })?;
        Self::parse(batch, text).map_err(|faults| {
            let told = faults.iter().take(MAX_FAULTS_TOLD).map(|fault| format!("\n  {fault}"));
            let mut message = format!("nothing was sent, because {} has faults:", path.display());
            message.extend(told);
            if faults.len() > MAX_FAULTS_TOLD {
                message.push_str(&format!("\n  and {} more", faults.len() - MAX_FAULTS_TOLD));
            }
            Failure::Refused(message)
        })
    }

    fn parse(batch: BatchId, text: String) -> Result<Self, Vec<String>> {
        let mut input = Self { batch, models: BTreeSet::new(), text, lines: Vec::new() };
        let mut faults = Vec::new();
        let mut first_uses = HashMap::new();
        let mut start = 0;
        for (number, raw) in (1..).zip(input.text.split_inclusive('\n')) {
            let place = start..start + raw.len();
            start = place.end;
            if raw.trim().is_empty() {
                continue;
            }
            match parse_line(raw) {
                Ok((custom_id, endpoint, body)) => {
                    if let Some(first) = first_uses.insert(custom_id.clone(), number) {
                        faults.push(format!(
                            "line {number}: custom_id {custom_id:?} is that of line {first} too"
                        ));
                    }
                    input.models.insert(body.model);
                    input.lines.push(Line { number, place, custom_id, endpoint });
                }
                Err(fault) => faults.push(format!("line {number}: {fault}")),
            }
        }
        if input.lines.is_empty() && faults.is_empty() {
            faults.push("it has no requests".into());
        }
        if input.lines.len() > MAX_BATCH_JOBS {
            faults.push(format!("{} requests; at most {MAX_BATCH_JOBS} are one batch", input.lines.len()));
        }
        if faults.is_empty() { Ok(input) } else { Err(faults) }
    }

    /// How many requests there are. The methods below take a place: 0 up to this.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// What its author calls the request.
    pub(crate) fn custom_id(&self, place: usize) -> &str {
        &self.lines[place].custom_id
    }

    /// Which API it is for.
    pub(crate) fn endpoint(&self, place: usize) -> Endpoint {
        self.lines[place].endpoint
    }

    /// What it asks for.
    pub(crate) fn body(&self, place: usize) -> Body {
        let (_, _, body) = parse_line(self.raw(place)).expect("it was proven when the file was read");
        body
    }

    /// The same for the same line of the same batch, and for no other: the batch, the line's number and its bytes.
    pub(crate) fn key(&self, place: usize) -> IdempotencyKey {
        let line = hex(&Sha256::digest(self.raw(place).trim()), 32);
        let key = format!("{}/{}-{line}", self.batch, self.lines[place].number);
        IdempotencyKey::new(key).expect("a batch's id, a number and 32 digits are short and printable")
    }

    /// The id of its result, made from the key.
    pub(crate) fn result_id(&self, place: usize) -> String {
        format!("batch_req_{}", hex(&Sha256::digest(self.key(place).as_str()), 24))
    }

    fn raw(&self, place: usize) -> &str {
        &self.text[self.lines[place].place.clone()]
    }
}

/// The id of the batch that a file with these bytes is.
pub(crate) fn derived_id(bytes: &[u8]) -> BatchId {
    BatchId::new(format!("b-{}", hex(&Sha256::digest(bytes), 16))).expect("letters and digits make an id")
}

/// A file's bytes.
///
/// # Errors
/// It cannot be read, or is larger than [`MAX_BATCH_FILE_BYTES`].
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BATCH_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| Failure::Refused(format!("cannot read {}: {error}", path.display())))?;
    if bytes.len() as u64 > MAX_BATCH_FILE_BYTES {
        let most = MAX_BATCH_FILE_BYTES >> 20;
        return Err(Failure::Refused(format!(
            "{} is larger than {most} MiB; make it several batches",
            path.display()
        )));
    }
    Ok(bytes)
}

fn parse_line(raw: &str) -> Result<(String, Endpoint, Body), String> {
    if raw.len() > MAX_REQUEST_BYTES {
        return Err(format!("{} bytes; a request has at most {MAX_REQUEST_BYTES}", raw.len()));
    }
    let line: Value = serde_json::from_str(raw).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(mut line) = line else { return Err("not a JSON object".into()) };
    let custom_id = text(&mut line, "custom_id")?;
    let method = text(&mut line, "method")?;
    if method != "POST" {
        return Err(format!("method {method:?}; only \"POST\" works"));
    }
    let endpoint = Endpoint::of_url(&text(&mut line, "url")?)?;
    let body = match line.remove("body") {
        Some(Value::Object(body)) => body,
        Some(_) => return Err("body is not an object".into()),
        None => return Err("no body".into()),
    };
    if let Some((name, _)) = line.iter().next() {
        return Err(format!("unknown field {name:?} beside custom_id, method, url and body"));
    }
    let body = Body::parse(endpoint, body).map_err(|fault| format!("body: {fault}"))?;
    Ok((custom_id, endpoint, body))
}

fn text(line: &mut Map<String, Value>, name: &str) -> Result<String, String> {
    match line.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        Some(_) => Err(format!("{name} is not a text, or an empty one")),
        None => Err(format!("no {name}")),
    }
}

fn hex(bytes: &[u8], digits: usize) -> String {
    let mut hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(digits);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> BatchId {
        BatchId::new("b").unwrap()
    }

    fn line(custom_id: &str) -> String {
        format!(
            r#"{{"custom_id":"{custom_id}","method":"POST","url":"/v1/completions","body":{{"model":"m","prompt":"p"}}}}"#
        )
    }

    #[test]
    fn keys_follow_from_batch_number_and_bytes() {
        let text = format!("{}\n\n{}", line("a"), line("b"));
        let input = Input::parse(id(), text).unwrap();
        assert_eq!((input.len(), input.lines[0].number, input.lines[1].number), (2, 1, 3));
        assert_eq!((input.custom_id(1), input.endpoint(1)), ("b", Endpoint::Completions));
        let (first, second) = (input.key(0), input.key(1));
        assert!(first.as_str().starts_with("b/1-") && second.as_str().starts_with("b/3-"), "{first:?}");
        assert_ne!(input.result_id(0), input.result_id(1));
        // The last line has the same key when more lines come behind it.
        let longer = format!("{}\n\n{}\n{}\n", line("a"), line("b"), line("c"));
        assert_eq!(Input::parse(id(), longer).unwrap().key(1), second);
        let other = Input::parse(BatchId::new("other").unwrap(), line("a")).unwrap();
        assert_ne!(other.key(0), first);
        let longest = BatchId::new("x".repeat(64)).unwrap();
        let text = format!("{}{}", "\n".repeat(100_000), line("a"));
        assert!(Input::parse(longest, text).unwrap().key(0).as_str().len() <= 128);
    }

    #[test]
    fn a_file_has_an_id_of_its_bytes() {
        // The sha256 of nothing begins so.
        assert_eq!(derived_id(b"").as_str(), "b-e3b0c44298fc1c14");
    }

    #[test]
    fn every_faulty_line_is_told_by_its_number() {
        let cases = [
            ("{", "not JSON: EOF"),
            ("[]", "not a JSON object"),
            (r#"{"method":"POST"}"#, "no custom_id"),
            (r#"{"custom_id":7}"#, "custom_id is not a text"),
            (r#"{"custom_id":"x","method":"GET"}"#, r#"method "GET"; only "POST" works"#),
            (r#"{"custom_id":"x","method":"POST","url":"/v1/embeddings"}"#, "not served yet"),
            (r#"{"custom_id":"x","method":"POST","url":"/v1/files"}"#, r#"url "/v1/files""#),
            (r#"{"custom_id":"x","method":"POST","url":"/v1/completions"}"#, "no body"),
            (r#"{"custom_id":"x","method":"POST","url":"/v1/completions","body":{}}"#, "body: no model"),
            (
                r#"{"custom_id":"x","method":"POST","url":"/v1/completions","body":{},"more":1}"#,
                r#"unknown field "more""#,
            ),
        ];
        let mut text = line("a") + "\n";
        text.extend(cases.iter().map(|(line, _)| format!("{line}\n")));
        text.push_str(&line("a"));
        let faults = Input::parse(id(), text).unwrap_err();
        assert_eq!(faults.len(), cases.len() + 1, "{faults:#?}");
        for (number, ((_, wanted), fault)) in (2..).zip(cases.iter().zip(&faults)) {
            assert!(fault.starts_with(&format!("line {number}: ")) && fault.contains(wanted), "{fault}");
        }
        assert_eq!(faults[10], r#"line 12: custom_id "a" is that of line 1 too"#);
        assert_eq!(Input::parse(id(), "\n \n".into()).unwrap_err(), ["it has no requests"]);
    }
}
