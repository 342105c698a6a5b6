//! Who may ask: over the Unix socket everybody who may open it; over TCP whoever has a key, and while there are no keys whoever
//! is on this machine.
//!
//! What a browser sends for a page is not what its user asked for: while no key is asked for, a request that a foreign page had
//! it send is refused, and so is one to a name that such a page may have led here.

use super::caller::Caller;
use super::connection::Connection;
use super::problem::{Kind, Problem};
use crate::keys::Keys;
use crate::limits::KEY_BUSY_RETRY;
use actix_web::dev::ServiceRequest;
use actix_web::http::header::{self, HeaderMap, HeaderValue};
use std::net::IpAddr;
use tokio::sync::OwnedSemaphorePermit;

/// Paths that begin so see and steer what is of all tenants.
const ADMIN_PATHS: &str = "/zllm/";
/// What load balancers ask, who have no keys.
const OPEN_PATHS: [&str; 2] = ["/health", "/ready"];
/// The origin that stands for all.
pub(crate) const ANY_ORIGIN: &str = "*";

/// Who it is, and their place among the requests that they may have under way.
///
/// # Errors
/// Nobody who may ask for this now.
pub(super) fn admit(
    request: &ServiceRequest,
    keys: &Keys,
    origins: &[String],
) -> Result<(Caller, Option<OwnedSemaphorePermit>), Problem> {
    // As the routes see it: `%7A` is `z` to them.
    let path = request.match_info().as_str();
    if request.conn_data::<Connection>().is_some_and(|connection| connection.over_socket) {
        return Ok((Caller::trusted(), None));
    }
    if OPEN_PATHS.contains(&path) {
        return Ok((Caller::default(), None));
    }
    if keys.is_empty() {
        let here = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
        if !here {
            let message = "there are no keys yet, and without one only this machine is answered; `zllmctl keys add` makes one";
            return Err(Problem::new(Kind::Unauthenticated, message));
        }
        refuse_foreign_pages(request.headers(), path, origins)?;
        return Ok((Caller::trusted(), None));
    }
    let mut given = presented(request.headers()).peekable();
    if given.peek().is_none() {
        let message = "a key is needed, as `Authorization: Bearer KEY` or as `x-api-key: KEY`";
        return Err(Problem::new(Kind::Unauthenticated, message));
    }
    let key = given
        .find_map(|key| keys.find(key))
        .ok_or_else(|| Problem::new(Kind::Unauthenticated, "the key is not known, or was revoked"))?;
    let caller = Caller::of(&key.settings);
    if path.starts_with(ADMIN_PATHS) {
        caller.must_be_admin()?;
    }
    let place = key.enter().map_err(|most| {
        let message = format!("this key may have {most} requests under way, and has");
        Problem::new(Kind::Busy { retry_after: KEY_BUSY_RETRY }, message)
    })?;
    Ok((caller, place))
}

/// The keys that a request has: OpenAI's clients send the one, Anthropic's the other.
fn presented(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get_all(header::AUTHORIZATION).filter_map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
    });
    bearer.chain(headers.get_all("x-api-key").map(|value| value.as_bytes()))
}

/// # Errors
/// It comes from a page of a site that is not allowed, or a name that may be anybody's led it here.
fn refuse_foreign_pages(headers: &HeaderMap, path: &str, origins: &[String]) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if let Some(host) = host
        && !is_local_name(host)
    {
        let message = "the header Host names another machine; without keys only requests to localhost or an address work";
        return Err(Problem::new(Kind::Forbidden, message));
    }
    let allowed = |origin: &str| origins.iter().any(|allowed| allowed == origin || allowed == ANY_ORIGIN);
    let may = match text(header::ORIGIN) {
        Some(origin) => {
            origin.split_once("://").is_some_and(|(_, site)| Some(site) == host) || allowed(origin)
        }
        // What a page loads, as a picture for instance, comes without; newer browsers say from where. A link may lead to our page.
        None => match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
            Some(b"cross-site" | b"same-site") => {
                let leads_here = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
                (leads_here && path == "/") || allowed(ANY_ORIGIN)
            }
            _ => true,
        },
    };
    if may {
        return Ok(());
    }
    Err(Problem::new(
        Kind::Forbidden,
        "a web page of another site asks; http.allow_origins names those that may",
    ))
}

/// Whether nobody outside can make the name of this `Host` lead here: it is an address, or one that is never looked up in
/// public.
fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.to_ascii_lowercase();
    name == "localhost"
        || [".localhost", ".internal"].iter().any(|end| name.ends_with(end))
        || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::HeaderName;

    fn headers(all: &[(&str, &str)]) -> HeaderMap {
        let parsed = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
        };
        all.iter().map(parsed).collect()
    }

    #[test]
    fn keys_come_in_either_header() {
        let of = |all: &[(&str, &str)]| -> Vec<String> {
            let headers = headers(all);
            presented(&headers).map(|key| String::from_utf8_lossy(key).into_owned()).collect()
        };
        assert_eq!(of(&[("authorization", "bearer a"), ("x-api-key", "b")]), ["a", "b"]);
        for none in [("authorization", "Basic a"), ("authorization", "Bearer"), ("cookie", "x-api-key=a")] {
            assert!(of(&[none]).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused_unless_they_are_named() {
        let may = |host: &str, origin: Option<&str>, allowed: &[&str]| {
            let origin = origin.map(|origin| ("origin", origin));
            let all: Vec<_> = [("host", host)].into_iter().chain(origin).collect();
            let allowed: Vec<String> = allowed.iter().map(|&origin| origin.to_owned()).collect();
            refuse_foreign_pages(&headers(&all), "/props", &allowed).is_ok()
        };
        let loads = |site, mode, path, allowed: &[&str]| {
            let all = [("host", "localhost"), ("sec-fetch-site", site), ("sec-fetch-mode", mode)];
            let allowed: Vec<String> = allowed.iter().map(|&origin| origin.to_owned()).collect();
            refuse_foreign_pages(&headers(&all), path, &allowed).is_ok()
        };
        assert!(!loads("cross-site", "no-cors", "/props", &[]), "a picture on another site's page");
        assert!(!loads("same-site", "navigate", "/props", &[]));
        assert!(loads("cross-site", "navigate", "/", &[]), "a link to our page");
        assert!(loads("none", "navigate", "/props", &[]), "typed");
        assert!(loads("same-origin", "cors", "/props", &[]));
        assert!(loads("cross-site", "no-cors", "/props", &[ANY_ORIGIN]));
        for host in ["localhost", "LOCALHOST:7143", "127.0.0.1:7143", "[::1]:7143", "x.localhost", "10.0.0.1"]
        {
            assert!(may(host, None, &[]), "{host}");
        }
        for host in
            ["evil.example", "evil.example:7143", "localhost.evil.example", "127.0.0.1.evil.example", ""]
        {
            assert!(!may(host, None, &[]), "{host}");
        }
        let from = |origin, allowed: &[&str]| may("localhost:7143", Some(origin), allowed);
        assert!(from("http://localhost:7143", &[]), "a page of our own");
        assert!(!from("http://localhost:8000", &[]), "another server's on this machine");
        assert!(!from("https://evil.example", &["https://app.example"]));
        assert!(!from("null", &["https://app.example"]));
        assert!(from("https://app.example", &["https://app.example"]));
        assert!(from("null", &[ANY_ORIGIN]));
    }
}
