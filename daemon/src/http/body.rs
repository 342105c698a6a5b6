//! A request's JSON, read within bounds of bytes and time.
//!
//! Depth is bounded by the JSON reader itself (128 levels). A value of the wrong type is named by its path.

use super::problem::{Kind, Problem};
use crate::limits::{HTTP_BODY_BYTES, HTTP_BODY_TIMEOUT};
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

/// Reads the body.
///
/// # Errors
/// Too large, too slow, or broken off.
pub(super) async fn read(mut payload: Payload) -> Result<Bytes, Problem> {
    let all = async {
        let mut body = BytesMut::new();
        while let Some(chunk) = payload.next().await {
            let chunk = chunk
                .map_err(|error| Problem::new(Kind::Invalid, format!("the body breaks off: {error}")))?;
            if body.len() + chunk.len() > HTTP_BODY_BYTES {
                return Err(Problem::new(
                    Kind::TooLarge,
                    format!("the body has more than {HTTP_BODY_BYTES} bytes"),
                ));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    };
    tokio::time::timeout(HTTP_BODY_TIMEOUT, all).await.unwrap_or_else(|_| {
        let seconds = HTTP_BODY_TIMEOUT.as_secs();
        Err(Problem::new(Kind::Slow, format!("the body did not come within {seconds} s")))
    })
}

/// Reads the body as two types: what only one request has, and what several have in common.
///
/// # Errors
/// As for [`read`] and [`parse_two`].
pub(super) async fn two<A: DeserializeOwned, B: DeserializeOwned>(
    payload: Payload,
) -> Result<(A, B), Problem> {
    parse_two(&read(payload).await?)
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
    use serde::Deserialize;

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
