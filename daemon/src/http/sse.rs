//! Server-sent events: `event:` and `data:` lines over a body that is written as its client reads.

use actix_web::HttpResponse;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::Bytes;
use futures_util::Stream;
use serde::Serialize;
use std::convert::Infallible;

/// An answer of events, each chunk one or more of them.
pub(super) fn response(events: impl Stream<Item = Bytes> + 'static) -> HttpResponse {
    let events = futures_util::StreamExt::map(events, Ok::<_, Infallible>);
    HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, HeaderValue::from_static("no-cache")))
        // Proxies that collect answers before they pass them on know this.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(events)
}

/// Appends an event with the JSON of `data`.
pub(super) fn write(out: &mut Vec<u8>, name: Option<&str>, data: &impl Serialize) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    write_json(out, data);
    out.extend_from_slice(b"\n\n");
}

/// Appends JSON without line ends.
///
/// Line separators of Unicode are escaped: some clients split lines at them, and JSON allows them raw.
pub(super) fn write_json(out: &mut Vec<u8>, data: &impl Serialize) {
    let json = serde_json::to_string(data).expect("our own types become JSON");
    for piece in json.split_inclusive(['\u{85}', '\u{2028}', '\u{2029}']) {
        let separator =
            piece.chars().next_back().filter(|last| matches!(last, '\u{85}' | '\u{2028}' | '\u{2029}'));
        match separator {
            Some(last) => {
                out.extend_from_slice(&piece.as_bytes()[..piece.len() - last.len_utf8()]);
                out.extend_from_slice(format!("\\u{:04x}", u32::from(last)).as_bytes());
            }
            None => out.extend_from_slice(piece.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_separators_are_escaped_and_mean_the_same() {
        let text = "a\u{85}b\u{2028}\u{2029}c\nd é 🙂";
        let mut out = Vec::new();
        write(&mut out, Some("x"), &text);
        let out = String::from_utf8(out).expect("UTF-8");
        let data = out
            .strip_prefix("event: x\ndata: ")
            .and_then(|rest| rest.strip_suffix("\n\n"))
            .expect("one event");
        assert!(!data.contains(['\u{85}', '\u{2028}', '\u{2029}', '\n']), "{data}");
        assert_eq!(serde_json::from_str::<String>(data).expect("JSON"), text);
    }
}
