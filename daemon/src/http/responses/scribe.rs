//! Writes a response down as its job's events come: the items, the events of each, and at the end what it took.
//!
//! The same events of a job give the same response and the same numbered events whenever they are read: live, after the
//! client comes back, after a restart of the daemon.

use crate::http::problem::{Kind, Problem};
use crate::http::turn::{End, Said};
use std::collections::VecDeque;
use zllm_engine::Piece;
use zllm_wire::{FinishReason, TokenLogprob};

use super::events::{Body, Event};
use super::items::{Item, ItemStatus, Part, TokenInfo, carried};
use super::object::{IncompleteDetails, Response, ResponseError, Status, Usage};
use super::tools::Names;

/// A response that is being written.
#[derive(Debug)]
pub(super) struct Scribe {
    pub(super) response: Response,
    names: Names,
    /// Whether reasoning is given in a form to send back.
    carry: bool,
    /// Whether the last item is not over.
    is_open: bool,
    reasoning_tokens: u64,
    /// Tokens whose text, if they have one, is not told yet.
    tokens: VecDeque<TokenLogprob>,
    /// The number of the next event.
    next: u64,
    events: Vec<Event>,
}

impl Scribe {
    /// Of a response without output.
    pub(super) fn new(response: Response, names: Names, carry: bool) -> Self {
        let (is_open, reasoning_tokens, next) = (false, 0, 0);
        let (tokens, events) = (VecDeque::new(), Vec::new());
        Self { response, names, carry, is_open, reasoning_tokens, tokens, next, events }
    }

    /// The events since this was asked last.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The first events.
    pub(super) fn begin(&mut self) {
        self.tell_response("response.created");
        match self.response.status {
            Status::Queued => self.tell_response("response.queued"),
            _ => self.tell_response("response.in_progress"),
        }
    }

    /// What was said next.
    pub(super) fn hear(&mut self, said: Said) {
        match said {
            Said::Started { .. } if self.response.status == Status::Queued => {
                self.response.status = Status::InProgress;
                self.tell_response("response.in_progress");
            }
            Said::Started { .. } => {}
            Said::More { pieces, logprobs, .. } => {
                self.tokens.extend(logprobs);
                pieces.into_iter().for_each(|piece| self.hear_piece(piece));
            }
            Said::End { end, .. } => self.hear_end(&end),
            Said::Usage(usage) => self.response.usage = Some(Usage::new(&usage, self.reasoning_tokens)),
        }
    }

    /// The last event, when the response is over and kept.
    pub(super) fn finish(&mut self) {
        assert!(self.response.status.is_over(), "{} goes on", self.response.id);
        self.tell_response(match self.response.status {
            Status::Incomplete => "response.incomplete",
            Status::Failed | Status::Cancelled => "response.failed",
            _ => "response.completed",
        });
    }

    /// Its job failed, or somebody ended it.
    pub(super) fn fail(&mut self, problem: &Problem) {
        self.close(ItemStatus::Incomplete);
        if matches!(problem.kind, Kind::Ended { is_cancelled: true }) {
            self.response.status = Status::Cancelled;
            return;
        }
        self.response.status = Status::Failed;
        let (code, message) = ("server_error".to_owned(), problem.message.clone());
        self.response.error = Some(ResponseError { code, message });
    }

    /// What comes next cannot be read. It has the number of the event before: who goes on behind it misses nothing.
    pub(super) fn give_up(&mut self, problem: &Problem) {
        let body = Body::Error { code: "server_error", message: problem.message.clone(), param: None };
        self.events.push(Event { kind: "error", sequence_number: self.next.saturating_sub(1), body });
    }

    fn hear_piece(&mut self, piece: Piece) {
        // Only text has log probabilities here.
        let tokens = match &piece {
            Piece::Text(text) => take_tokens(&mut self.tokens, text),
            Piece::Reasoning(text) | Piece::Arguments { json: text, .. } => {
                drop(take_tokens(&mut self.tokens, text));
                Vec::new()
            }
            Piece::Call { .. } | Piece::CallEnd { .. } => Vec::new(),
        };
        match piece {
            Piece::Text(text) => {
                let tokens: Vec<TokenInfo> = tokens.into_iter().map(TokenInfo::from).collect();
                self.open_message();
                let Some(Item::Message { id, content, .. }) = self.response.output.last_mut() else {
                    unreachable!("a message is open")
                };
                let Some(Part::OutputText { text: all, logprobs, .. }) = content.last_mut() else {
                    unreachable!("its part is open")
                };
                all.push_str(&text);
                logprobs.extend(tokens.iter().cloned());
                let (item_id, output_index) = (id.clone(), self.response.output.len() - 1);
                let body = Body::TextDelta {
                    item_id,
                    output_index,
                    content_index: 0,
                    delta: text,
                    logprobs: Some(tokens),
                };
                self.tell("response.output_text.delta", body);
            }
            Piece::Reasoning(text) => {
                self.open_reasoning();
                let Some(Item::Reasoning { id, content, .. }) = self.response.output.last_mut() else {
                    unreachable!("reasoning is open")
                };
                let Some(Part::ReasoningText { text: all }) = content.last_mut() else {
                    unreachable!("its part is open")
                };
                all.push_str(&text);
                let (item_id, output_index) = (id.clone(), self.response.output.len() - 1);
                let body =
                    Body::TextDelta { item_id, output_index, content_index: 0, delta: text, logprobs: None };
                self.tell("response.reasoning_text.delta", body);
            }
            Piece::Call { index, name } => {
                self.close(ItemStatus::Completed);
                let (namespace, name) = self.names.called(name);
                let (id, call_id) = (self.item_id("fc"), format!("call_{}_{index}", self.number()));
                let (status, arguments) = (ItemStatus::InProgress, String::new());
                self.open(Item::FunctionCall { id, status, call_id, name, namespace, arguments });
            }
            Piece::Arguments { json, .. } => {
                let Some(Item::FunctionCall { id, arguments, .. }) = self.response.output.last_mut() else {
                    unreachable!("a call is open")
                };
                arguments.push_str(&json);
                let (item_id, output_index) = (id.clone(), self.response.output.len() - 1);
                let body = Body::ArgumentsDelta { item_id, output_index, delta: json };
                self.tell("response.function_call_arguments.delta", body);
            }
            Piece::CallEnd { .. } => self.close(ItemStatus::Completed),
        }
    }

    fn hear_end(&mut self, end: &End) {
        self.reasoning_tokens = end.reasoning_tokens;
        // Clients count on something being there.
        if self.response.output.is_empty() {
            self.open_message();
        }
        if end.end.reason == FinishReason::Length {
            self.close(ItemStatus::Incomplete);
            self.response.status = Status::Incomplete;
            let reason = "max_output_tokens".to_owned();
            self.response.incomplete_details = Some(IncompleteDetails { reason });
        } else {
            self.close(ItemStatus::Completed);
            self.response.status = Status::Completed;
        }
    }

    /// Makes the last item a message that goes on.
    fn open_message(&mut self) {
        if self.is_open && matches!(self.response.output.last(), Some(Item::Message { .. })) {
            return;
        }
        self.close(ItemStatus::Completed);
        let (id, role) = (self.item_id("msg"), "assistant".to_owned());
        self.open(Item::Message { id, status: ItemStatus::InProgress, role, content: Vec::new() });
        self.open_part(Part::output(String::new()));
    }

    /// Makes the last item reasoning that goes on.
    fn open_reasoning(&mut self) {
        if self.is_open && matches!(self.response.output.last(), Some(Item::Reasoning { .. })) {
            return;
        }
        self.close(ItemStatus::Completed);
        let (id, summary, content) = (self.item_id("rs"), Vec::new(), Vec::new());
        let status = ItemStatus::InProgress;
        self.open(Item::Reasoning { id, status, summary, content, encrypted_content: None });
        self.open_part(Part::ReasoningText { text: String::new() });
    }

    fn open(&mut self, item: Item) {
        let output_index = self.response.output.len();
        self.tell("response.output_item.added", Body::Item { output_index, item: item.clone() });
        self.response.output.push(item);
        self.is_open = true;
    }

    fn open_part(&mut self, part: Part) {
        let output_index = self.response.output.len() - 1;
        let (Item::Message { id, content, .. } | Item::Reasoning { id, content, .. }) =
            &mut self.response.output[output_index]
        else {
            unreachable!("messages and reasoning have parts")
        };
        content.push(part.clone());
        let item_id = id.clone();
        let body = Body::Part { item_id, output_index, content_index: 0, part };
        self.tell("response.content_part.added", body);
    }

    /// Ends the last item, if it goes on.
    fn close(&mut self, end: ItemStatus) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let (output_index, carry) = (self.response.output.len() - 1, self.carry);
        let Some(item) = self.response.output.last_mut() else { unreachable!("an item is open") };
        let item_id = item.id().to_owned();
        let (Item::Message { status, .. }
        | Item::FunctionCall { status, .. }
        | Item::FunctionCallOutput { status, .. }
        | Item::Reasoning { status, .. }) = item;
        *status = end;
        if let Item::Reasoning { content, encrypted_content, .. } = item
            && let Some(Part::ReasoningText { text }) = content.first()
        {
            *encrypted_content = carry.then(|| carried(text));
        }
        let item = item.clone();
        match &item {
            Item::FunctionCall { name, arguments, .. } => {
                let (name, arguments) = (name.clone(), arguments.clone());
                let body = Body::ArgumentsDone { item_id, output_index, name, arguments };
                self.tell("response.function_call_arguments.done", body);
            }
            Item::Message { content, .. } | Item::Reasoning { content, .. } => {
                let part = content[0].clone();
                self.close_part(item_id, output_index, part);
            }
            Item::FunctionCallOutput { .. } => unreachable!("the model gives no outputs"),
        }
        self.tell("response.output_item.done", Body::Item { output_index, item });
    }

    fn close_part(&mut self, item_id: String, output_index: usize, part: Part) {
        let (kind, text, logprobs) = match &part {
            Part::OutputText { text, logprobs, .. } => {
                ("response.output_text.done", text.clone(), Some(logprobs.clone()))
            }
            Part::ReasoningText { text } => ("response.reasoning_text.done", text.clone(), None),
            _ => unreachable!("the model gives text and reasoning"),
        };
        let done =
            Body::TextDone { item_id: item_id.clone(), output_index, content_index: 0, text, logprobs };
        self.tell(kind, done);
        let done = Body::Part { item_id, output_index, content_index: 0, part };
        self.tell("response.content_part.done", done);
    }

    /// An id for the next item.
    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}_{}", self.number(), self.response.output.len())
    }

    /// What no other response has in its id.
    fn number(&self) -> &str {
        self.response.id.trim_start_matches("resp_")
    }

    fn tell_response(&mut self, kind: &'static str) {
        let response = Box::new(self.response.clone());
        self.tell(kind, Body::Response { response });
    }

    fn tell(&mut self, kind: &'static str, body: Body) {
        self.events.push(Event { kind, sequence_number: self.next, body });
        self.next += 1;
    }
}

/// Those of the tokens that make up this text. What stands before it is of a tag, which nobody is told, and goes as well; what
/// stands behind may be a tag or more of the text, and stays.
fn take_tokens(tokens: &mut VecDeque<TokenLogprob>, text: &str) -> Vec<TokenLogprob> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| &token.bytes).copied().collect();
    // A text that is not there word for word has signs in place of broken characters: all of it, then.
    let found = bytes.windows(text.len().max(1)).position(|window| window == text.as_bytes());
    let place = found.map_or(0..bytes.len(), |start| start..start + text.len());
    let mut end = 0;
    let mut taken = Vec::new();
    while end < place.end
        && let Some(token) = tokens.pop_front()
    {
        end += token.bytes.len();
        if end > place.start {
            taken.push(token);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(tokens: &[&str], texts: &[&str]) -> Vec<String> {
        let token = |text: &&str| TokenLogprob {
            token: 0,
            bytes: text.as_bytes().to_vec(),
            logprob: -1.0,
            offset: 0,
            top: Vec::new(),
        };
        let mut tokens: VecDeque<TokenLogprob> = tokens.iter().map(token).collect();
        let told = |token: TokenLogprob| String::from_utf8(token.bytes).expect("text");
        let take = |text: &&str| take_tokens(&mut tokens, text).into_iter().map(told).collect::<Vec<_>>();
        texts.iter().map(take).map(|taken| taken.join("|")).collect()
    }

    #[test]
    fn a_text_has_its_own_tokens_whenever_it_is_told() {
        // What was held back, in case a tag came, comes with the text that it is.
        assert_eq!(taken(&["a", " <", "b"], &["a ", "<b"]), ["a| <", "b"]);
        assert_eq!(taken(&["a <", "t", "i", "p> b"], &["a <tip> b"]), ["a <|t|i|p> b"]);
        // Tags have none.
        assert_eq!(taken(&["</think>", "\n\n", "Four", "."], &["Four", "."]), ["Four", "."]);
        assert_eq!(taken(&["</th", "ink>\n\nFo", "ur"], &["Four"]), ["ink>\n\nFo|ur"]);
        assert_eq!(taken(&["Look", ": ", "<tool", "_call>"], &["Look: "]), ["Look|: "]);
        // Signs in place of broken characters.
        assert_eq!(taken(&["a", "?"], &["a\u{fffd}"]), ["a|?"]);
        assert_eq!(taken(&[], &["a"]), [""]);
    }
}
