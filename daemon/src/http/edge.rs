//! What stands before every handler: whether the request may be at all, and what every answer carries.

use super::Http;
use super::admission::admit;
use super::caller::Caller;
use super::connection::{Connection, UnderWay};
use super::dialect::Dialect;
use super::problem::Problem;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderValue};
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use actix_web::{Error, HttpMessage, web};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// Characters of a path that are logged.
const LOGGED_PATH_CHARS: usize = 200;

/// Gives a request its id and its caller, and its answer's problem the right words.
pub(super) async fn edge(
    http: web::Data<Http>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let mut under_way = request.conn_data::<Connection>().map(Connection::begin);
    let is_upgrade = request.headers().contains_key(header::UPGRADE);
    let began = http.services.clock.now();
    let dialect = Dialect::of_request(&request);
    let id = http.request_id();
    let header = HeaderValue::from_str(&id.0).expect("an id of letters and digits");
    request.extensions_mut().insert(id.clone());
    let (response, place) = match admit(&request, &http.services.keys, &http.allow_origins) {
        Ok((caller, place)) => {
            request.extensions_mut().insert(caller);
            (next.call(request).await?.map_into_boxed_body(), place)
        }
        Err(problem) => (request.error_response(problem), None),
    };
    let problem = response.response().error().and_then(|error| error.as_error::<Problem>()).cloned();
    let mut response = match problem {
        None => response,
        Some(problem) => {
            let (request, _) = response.into_parts();
            ServiceResponse::new(request, dialect.answer(&problem, &id))
        }
    };
    response.headers_mut().insert(dialect.id_header(), header);
    // A WebSocket's client sends on.
    if let Some(under_way) = under_way.as_mut().filter(|_| !is_upgrade) {
        under_way.answered();
    }
    tracing::debug!(
        request = id.0,
        method = %response.request().method(),
        path = response.request().path().chars().take(LOGGED_PATH_CHARS).collect::<String>(),
        key = response.request().extensions().get::<Caller>().and_then(|caller| caller.key.as_ref()).map(|key| key.as_str()),
        status = response.status().as_u16(),
        took_ms = (http.services.clock.now() - began).as_secs_f64() * 1e3,
        "answered"
    );
    Ok(response.map_body(|_, body| Held { body, _place: place, _under_way: under_way }))
}

/// A body, and what its request holds until it is written, or given up.
struct Held {
    body: BoxBody,
    /// Among those that its key may have under way.
    _place: Option<OwnedSemaphorePermit>,
    _under_way: Option<UnderWay>,
}

impl MessageBody for Held {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(context)
    }
}
