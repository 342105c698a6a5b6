//! What stands before every handler: who asks and whether they may, and what every answer carries.

use super::Http;
use super::caller::Caller;
use super::dialect::Dialect;
use super::problem::Problem;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::HeaderValue;
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, web};

/// Paths that begin so see and steer what is of all tenants.
const ADMIN_PATHS: &str = "/zllm/";

/// Gives a request its id and its caller, and its answer's problem the right words.
pub(super) async fn edge(
    http: web::Data<Http>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let dialect = Dialect::of(request.path());
    let id = http.request_id();
    let header = HeaderValue::from_str(&id.0).expect("an id of letters and digits");
    request.extensions_mut().insert(id.clone());
    let caller = admit(&request);
    let response = match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.call(request).await?.map_into_boxed_body()
        }
        Err(problem) => request.error_response(problem),
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
    Ok(response)
}

/// Who it is.
///
/// # Errors
/// Nobody who may ask for this.
fn admit(request: &ServiceRequest) -> Result<Caller, Problem> {
    let caller = Caller::trusted();
    // As the routes see it: `%7A` is `z` to them.
    if request.match_info().as_str().starts_with(ADMIN_PATHS) {
        caller.must_be_admin()?;
    }
    Ok(caller)
}
