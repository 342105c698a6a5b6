//! The events of a streamed response, the same over server-sent events and over WebSocket.

use serde::Serialize;

use super::items::{Item, Part, TokenInfo};
use super::object::Response;

/// One event.
#[derive(Debug, Serialize)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// From 0, each one more than the one before; an error's is that of the event before it.
    pub(super) sequence_number: u64,
    #[serde(flatten)]
    pub(super) body: Body,
}

/// What an event says.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Body {
    Response {
        response: Box<Response>,
    },
    Error {
        code: &'static str,
        message: String,
        /// Always null: it is about no field of the request.
        param: Option<String>,
    },
    Item {
        output_index: usize,
        item: Item,
    },
    Part {
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: Part,
    },
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenInfo>>,
    },
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenInfo>>,
    },
    ArgumentsDelta {
        item_id: String,
        output_index: usize,
        delta: String,
    },
    ArgumentsDone {
        item_id: String,
        output_index: usize,
        name: String,
        arguments: String,
    },
}
