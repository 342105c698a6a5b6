//! A request's JSON, read within bounds of bytes and time, of which those of all requests together are bounded too.
//!
//! Depth is bounded by the JSON reader itself (128 levels). A value of the wrong type is named by its path. A large body is
//! taken apart off the thread that serves all connections.

use super::problem::{Kind, Problem};
use crate::limits::{
    HTTP_BODIES_BYTES, HTTP_BODY_BYTES, HTTP_BODY_TIMEOUT, KEY_BUSY_RETRY, PARSED_AT_ONCE_BYTES,
    PARSING_BODIES,
};
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use std::ops::Deref;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of the bodies that are on their way in or being taken apart.
static ROOM: Semaphore = Semaphore::const_new(HTTP_BODIES_BYTES);
/// Large bodies that are taken apart at one time.
static PARSING: Semaphore = Semaphore::const_new(PARSING_BODIES);

/// A body, which takes of the room for all of them until it is dropped.
pub(super) struct Body {
    bytes: Bytes,
    _room: Option<SemaphorePermit<'static>>,
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body.
///
/// # Errors
/// Too large, too slow, broken off, or there are too many.
pub(super) async fn read(mut payload: Payload) -> Result<Body, Problem> {
    let all = async {
        let mut body = BytesMut::new();
        let mut room: Option<SemaphorePermit<'static>> = None;
        while let Some(chunk) = payload.next().await {
            let chunk = chunk
                .map_err(|error| Problem::new(Kind::Invalid, format!("the body breaks off: {error}")))?;
            if body.len() + chunk.len() > HTTP_BODY_BYTES {
                return Err(Problem::new(
                    Kind::TooLarge,
                    format!("the body has more than {HTTP_BODY_BYTES} bytes"),
                ));
            }
            let more = ROOM.try_acquire_many(chunk.len() as u32).map_err(|_| {
                let message = format!("requests of {HTTP_BODIES_BYTES} bytes together are being read");
                Problem::new(Kind::Busy { retry_after: KEY_BUSY_RETRY }, message)
            })?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Body { bytes: body.freeze(), _room: room })
    };
    tokio::time::timeout(HTTP_BODY_TIMEOUT, all).await.unwrap_or_else(|_| {
        let seconds = HTTP_BODY_TIMEOUT.as_secs();
        Err(Problem::new(Kind::Slow, format!("the body did not come within {seconds} s")))
    })
}

/// Reads the body as a type.
///
/// # Errors
/// As for [`read`] and [`parse`].
pub(super) async fn one<T: DeserializeOwned + Send + 'static>(payload: Payload) -> Result<T, Problem> {
    take_apart(read(payload).await?, parse).await
}

/// Reads the body as two types: what only one request has, and what several have in common.
///
/// # Errors
/// As for [`read`] and [`parse_two`].
pub(super) async fn two<A, B>(payload: Payload) -> Result<(A, B), Problem>
where
    A: DeserializeOwned + Send + 'static,
    B: DeserializeOwned + Send + 'static,
{
    take_apart(read(payload).await?, parse_two).await
}

/// What a body says; of a large one elsewhere, that nobody else has to wait.
///
/// # Errors
/// Those of `parse`.
pub(super) async fn take_apart<T: Send + 'static>(
    body: Body,
    parse: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    if body.len() <= PARSED_AT_ONCE_BYTES {
        return parse(&body);
    }
    let place = PARSING.acquire().await.expect("it is never closed");
    let parsed = tokio::task::spawn_blocking(move || {
        // Kept until it is done, whether or not anybody still waits for it.
        let _place = place;
        parse(&body)
    });
    parsed.await.map_err(|error| Problem::new(Kind::Failed, format!("reading the body failed: {error}")))?
}

/// What the body says as two types. Each is read from the whole body, so that what is wrong has its path in both.
///
/// # Errors
/// As for [`parse`], of the first that fails.
pub(super) fn parse_two<A: DeserializeOwned, B: DeserializeOwned>(body: &[u8]) -> Result<(A, B), Problem> {
    Ok((parse(body)?, parse(body)?))
}

/// What the body says; a field that `T` does not have is passed over.
///
/// # Errors
/// Not JSON, or not what was expected there.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if body.is_empty() {
        return Err(Problem::new(Kind::Invalid, "the body is empty; a JSON object is expected"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let parsed: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
    let value = parsed.map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        // Broken JSON has a place in the text; a value that is not what was expected has a name.
        let named = inner.is_data() && path != ".";
        let message =
            if named { format!("{path}: {inner}") } else { format!("the body is not as expected: {inner}") };
        Problem { kind: Kind::Invalid, message, param: named.then_some(path) }
    })?;
    reader
        .end()
        .map_err(|error| Problem::new(Kind::Invalid, format!("the body is not one JSON value: {error}")))?;
    Ok(value)
}

/// A query.
///
/// # Errors
/// One that is not as expected.
pub(super) fn query<T>(query: Result<actix_web::web::Query<T>, actix_web::Error>) -> Result<T, Problem> {
    let query = query
        .map_err(|error| Problem::new(Kind::Invalid, format!("the query is not as expected: {error}")))?;
    Ok(query.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::FromRequest;
    use actix_web::test::TestRequest;
    use serde::Deserialize;
    use serde_json::Value;

    #[derive(Debug, Deserialize)]
    struct Request {
        #[allow(dead_code, reason = "only read in")]
        list: Vec<Item>,
    }

    #[derive(Debug, Deserialize)]
    struct Item {
        #[allow(dead_code, reason = "only read in")]
        number: u32,
    }

    fn problem(body: &[u8]) -> Problem {
        parse::<Request>(body).expect_err("a bad body")
    }

    #[actix::test]
    async fn bodies_of_any_size_are_read_and_give_their_room_back() {
        let read = async |body: String| {
            let (request, mut payload) = TestRequest::default().set_payload(body).to_http_parts();
            let payload = Payload::from_request(&request, &mut payload).await.expect("a payload");
            one::<Value>(payload).await
        };
        for bytes in [1, 2 * PARSED_AT_ONCE_BYTES] {
            let body = Value::from("a".repeat(bytes));
            assert_eq!(read(body.to_string()).await, Ok(body));
            let broken = read(format!("[{}", " ".repeat(bytes))).await.expect_err("not whole");
            assert!(broken.message.contains("EOF"), "{broken:?}");
        }
        let large = read(" ".repeat(HTTP_BODY_BYTES + 1)).await.expect_err("too large");
        assert_eq!(large.kind, Kind::TooLarge);
        assert_eq!(ROOM.available_permits(), HTTP_BODIES_BYTES);
        let others = ROOM.acquire_many(HTTP_BODIES_BYTES as u32 - 10).await.expect("room");
        assert!(matches!(read(" ".repeat(11)).await.expect_err("no room").kind, Kind::Busy { .. }));
        drop(others);
        assert_eq!(read("[]".into()).await, Ok(Value::Array(Vec::new())));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        let found = problem(br#"{"list": [{"number": 1}, {"number": "two"}]}"#);
        assert_eq!(found.param.as_deref(), Some("list[1].number"));
        assert!(found.message.starts_with("list[1].number: invalid type: string"), "{found:?}");
        assert!(problem(b"{}").message.contains("missing field `list`"));
    }

    #[test]
    fn broken_bodies_are_refused() {
        assert!(problem(b"").message.contains("empty"));
        let deep = [b"[".repeat(20_000), b"]".repeat(20_000)].concat();
        for body in [&b"{:"[..], b"\"\\ud800\"", b"\xff\xfe", b"{\"list\": []} x", &deep] {
            assert_eq!(problem(body).kind, Kind::Invalid);
        }
    }
}
