//! Sessions, and what is kept of them where.

use super::{Done, Whose};
use crate::http::problem::Problem;
use crate::http::router::{Operation, Router};
use crate::http::{Http, body};
use crate::services::{Evicted, Saved};
use actix_web::web::{self, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zllm_wire::{
    CheckReport, EvictTarget, Residency, SessionDetail, SessionId, SessionInfo, SessionRef, Tenant, Tier,
};

type Session = web::Path<SessionId>;
type Query = web::Query<Whose>;

pub(super) fn routes(router: &mut Router) {
    let list = Operation::new("List the sessions, latest first").gives::<Sessions>();
    router.get("/zllm/v1/sessions", web::to(self::list), list);
    let show = Operation::new("Tell of a session in full").query::<Whose>().gives::<SessionDetail>();
    router.get("/zllm/v1/sessions/{session}", web::to(self::show), show);
    let fork = Operation::new("Begin a session with another's timeline").query::<Whose>();
    let fork = fork.takes::<Fork>().gives::<SessionDetail>();
    router.post("/zllm/v1/sessions/{session}/fork", web::to(self::fork), fork);
    let done = |summary| Operation::new(summary).query::<Whose>().gives::<Done>();
    let pin = done("Keep a session's KV until it is unpinned");
    router.post("/zllm/v1/sessions/{session}/pin", web::to(self::pin), pin);
    let unpin = done("Let a session's KV go when the room is needed");
    router.post("/zllm/v1/sessions/{session}/unpin", web::to(self::unpin), unpin);
    let ttl = done("Say when a session is forgotten").takes::<Ttl>();
    router.post("/zllm/v1/sessions/{session}/ttl", web::to(self::ttl), ttl);
    let save = Operation::new("Write a session to the SSD").query::<Whose>().gives::<Saved>();
    router.post("/zllm/v1/sessions/{session}/save", web::to(save_one), save);
    let save = Operation::new("Write all sessions to the SSD").gives::<Saved>();
    router.post("/zllm/v1/save", web::to(save_all), save);
    let evict = Operation::new("Drop cached KV").takes::<Evict>().gives::<Evicted>();
    router.post("/zllm/v1/evict", web::to(self::evict), evict);
    let residency = Operation::new("Tell where every KV block is").gives::<Residency>();
    router.get("/zllm/v1/residency", web::to(self::residency), residency);
    let check = Operation::new("Read everything on the SSD and compare it").gives::<CheckReport>();
    router.post("/zllm/v1/check", web::to(self::check), check);
}

/// Sessions.
#[derive(Debug, Serialize, JsonSchema)]
struct Sessions {
    sessions: Vec<SessionInfo>,
}

async fn list(http: web::Data<Http>) -> Result<Json<Sessions>, Problem> {
    let (sessions, _) = http.services.list().await?;
    Ok(Json(Sessions { sessions }))
}

async fn show(http: web::Data<Http>, id: Session, whose: Query) -> Result<Json<SessionDetail>, Problem> {
    Ok(Json(http.services.show_session(named(id, whose)).await?))
}

/// A session that begins like another.
#[derive(Debug, Deserialize, JsonSchema)]
struct Fork {
    /// The new one's id; no session of that tenant has it yet.
    to: SessionId,
    /// How many of the other's tokens it begins with; without it all.
    tokens: Option<u64>,
}

async fn fork(
    http: web::Data<Http>,
    id: Session,
    whose: Query,
    payload: web::Payload,
) -> Result<Json<SessionDetail>, Problem> {
    let Fork { to, tokens } = body::one(payload).await?;
    Ok(Json(http.services.fork(named(id, whose), to, tokens).await?))
}

async fn pin(http: web::Data<Http>, id: Session, whose: Query) -> Result<Json<Done>, Problem> {
    http.services.pin(&named(id, whose), true).await?;
    Ok(Json(Done {}))
}

async fn unpin(http: web::Data<Http>, id: Session, whose: Query) -> Result<Json<Done>, Problem> {
    http.services.pin(&named(id, whose), false).await?;
    Ok(Json(Done {}))
}

/// When a session is forgotten, unless it is pinned.
#[derive(Debug, Deserialize, JsonSchema)]
struct Ttl {
    /// So long after its last use; null: as the configuration says.
    ttl_ms: Option<u64>,
}

async fn ttl(
    http: web::Data<Http>,
    id: Session,
    whose: Query,
    payload: web::Payload,
) -> Result<Json<Done>, Problem> {
    let Ttl { ttl_ms } = body::one(payload).await?;
    http.services.set_ttl(&named(id, whose), ttl_ms).await?;
    Ok(Json(Done {}))
}

async fn save_one(http: web::Data<Http>, id: Session, whose: Query) -> Result<Json<Saved>, Problem> {
    Ok(Json(http.services.save(Some(&named(id, whose))).await?))
}

async fn save_all(http: web::Data<Http>) -> Result<Json<Saved>, Problem> {
    Ok(Json(http.services.save(None).await?))
}

/// What is to be evicted: a session's KV, that of sessions which were not used for a while, or all.
#[derive(Debug, Deserialize, JsonSchema)]
struct Evict {
    session: Option<SessionId>,
    /// The session's.
    tenant: Option<Tenant>,
    idle_ms: Option<u64>,
    all: Option<bool>,
    /// From this tier only; without it from all, and a session that is named, or older than was asked, is forgotten.
    tier: Option<Tier>,
}

async fn evict(http: web::Data<Http>, payload: web::Payload) -> Result<Json<Evicted>, Problem> {
    let Evict { session, tenant, idle_ms, all, tier } = body::one(payload).await?;
    let target = match (session, idle_ms, all.unwrap_or(false)) {
        (Some(id), None, false) => EvictTarget::Session(SessionRef { tenant, id }),
        _ if tenant.is_some() => return Err(Problem::of("tenant", "tenant has no effect without session")),
        (None, Some(idle_ms), false) => EvictTarget::OlderThan { idle_ms },
        (None, None, true) => EvictTarget::All,
        _ => return Err(Problem::of("session", "give one of session, idle_ms and \"all\": true")),
    };
    Ok(Json(http.services.evict(target, tier).await?))
}

async fn residency(http: web::Data<Http>) -> Result<Json<Residency>, Problem> {
    Ok(Json(http.services.residency().await?))
}

async fn check(http: web::Data<Http>) -> Result<Json<CheckReport>, Problem> {
    Ok(Json(http.services.check_disk().await?))
}

fn named(id: Session, whose: Query) -> SessionRef {
    whose.into_inner().session(id.into_inner())
}
