//! OpenAI's Responses API: responses made, kept, gone on from and made in the background, over HTTP and WebSocket, and the
//! conversations that they may belong to.
//!
//! A request's items ([`items`]) become the messages that a model's template is given; a job's events become a response and
//! its events ([`scribe`]), the same ones whenever and wherever they are read.

mod background;
mod conversations;
mod events;
mod items;
mod list;
mod live;
mod object;
mod request;
mod scribe;
mod shelf;
mod socket;
mod tools;

pub(super) use background::resume;

use super::caller::Caller;
use super::models;
use super::problem::{Kind, Problem};
use super::router::{Operation, Router};
use super::turn::Turn;
use super::{Http, body};
use crate::limits::{HISTORIES_BYTES, MAX_HISTORY_BYTES};
use actix_web::{HttpResponse, web};
use items::{Given, Item, ItemStatus, Part};
use list::{List, Page, Removed};
use live::{Keeper, Live};
use object::{Response, Status};
use request::{Create, Input, Plan};
use schemars::JsonSchema;
use scribe::Scribe;
use serde::{Deserialize, Serialize};
use shelf::{Record, Shelf};
use std::collections::HashMap;
use std::rc::Rc;
use tokio::sync::{Semaphore, SemaphorePermit};
use zllm_wire::Submit;

/// Bytes of what was said before that are read and made into prompts.
static ROOM: Semaphore = Semaphore::const_new(HISTORIES_BYTES);

/// Where it is.
pub(super) fn routes(router: &mut Router) {
    let items = "/v1/conversations/{conversation}/items";
    let item = "/v1/conversations/{conversation}/items/{item}";
    router.post(
        "/v1/responses",
        web::to(create),
        Operation::new("Make a response").takes::<Create>().gives::<Response>().streams("text/event-stream"),
    );
    router.get("/v1/responses", web::to(socket::upgrade), Operation::new("Make responses over a WebSocket"));
    router.post(
        "/v1/responses/input_tokens",
        web::to(input_tokens),
        Operation::new("Count a request's tokens").takes::<Create>().gives::<InputTokens>(),
    );
    router.get(
        "/v1/responses/{response}",
        web::to(retrieve),
        Operation::new("Tell of a response")
            .query::<Retrieve>()
            .gives::<Response>()
            .streams("text/event-stream"),
    );
    router.delete(
        "/v1/responses/{response}",
        web::to(delete),
        Operation::new("Delete a response").gives::<Removed>(),
    );
    router.post(
        "/v1/responses/{response}/cancel",
        web::to(cancel),
        Operation::new("End a response in the background").gives::<Response>(),
    );
    router.get(
        "/v1/responses/{response}/input_items",
        web::to(input_items),
        Operation::new("List what a response was made from").query::<Page>().gives::<List>(),
    );
    router.post(
        "/v1/conversations",
        web::to(conversations::create),
        Operation::new("Make a conversation")
            .takes::<conversations::Create>()
            .gives::<conversations::Conversation>(),
    );
    let conversation = "/v1/conversations/{conversation}";
    let told = |summary| Operation::new(summary).gives::<conversations::Conversation>();
    router.get(conversation, web::to(conversations::retrieve), told("Tell of a conversation"));
    let update = told("Change a conversation's metadata").takes::<conversations::Create>();
    router.post(conversation, web::to(conversations::update), update);
    let delete = Operation::new("Delete a conversation").gives::<Removed>();
    router.delete(conversation, web::to(conversations::delete), delete);
    let list = Operation::new("List a conversation's items").query::<Page>().gives::<List>();
    router.get(items, web::to(conversations::list), list);
    let add = Operation::new("Add items to a conversation").takes::<conversations::Add>().gives::<List>();
    router.post(items, web::to(conversations::add), add);
    let one = Operation::new("Tell of a conversation's item").gives::<Item>();
    router.get(item, web::to(conversations::item), one);
    router.delete(item, web::to(conversations::remove), told("Take an item out of a conversation"));
}

/// How a response is told of.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseQuery")]
struct Retrieve {
    /// Its events, from the first or behind `starting_after`; of one in the background.
    stream: Option<bool>,
    starting_after: Option<u64>,
}

/// How many tokens a request has.
#[derive(Debug, Serialize, JsonSchema)]
struct InputTokens {
    /// `response.input_tokens`.
    object: &'static str,
    input_tokens: usize,
}

/// What was said so far.
#[derive(Clone, Default)]
struct Said {
    items: Vec<Item>,
    /// That they have as they are kept, at most [`MAX_HISTORY_BYTES`].
    bytes: usize,
}

/// The last response of a connection and all that was said up to its end.
#[derive(Clone)]
struct Last {
    id: String,
    said: Rc<Said>,
}

impl Last {
    /// `None` when it failed, or is too much.
    fn of(live: &Live, before: Rc<Said>) -> Option<Self> {
        let (input, response) = (live.input(), live.response());
        if !response.status.is_answer() {
            return None;
        }
        let bytes = before.bytes + items::bytes(input) + items::bytes(&response.output);
        if bytes > MAX_HISTORY_BYTES {
            return None;
        }
        let mut said = Rc::unwrap_or_clone(before);
        said.items.extend(input.iter().chain(&response.output).cloned());
        Some(Self { id: response.id.clone(), said: Rc::new(Said { bytes, ..said }) })
    }
}

/// What a response is made from.
struct Gathered {
    before: Rc<Said>,
    input: Vec<Item>,
    /// What was read for it, until it is a prompt.
    _room: Option<SemaphorePermit<'static>>,
}

/// What no other response or conversation has in its id.
fn number(http: &Http) -> String {
    http.fresh_id("")
}

async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let request: Create = body::one(payload).await?;
    refuse_silent(&request)?;
    let (stream, shelf) = (request.stream.unwrap_or(false), Shelf::new(http, &caller));
    let (live, _) = begin(&shelf, &caller, request, None).await?;
    if stream {
        return Ok(live.stream(None));
    }
    if live.response().background {
        return Ok(HttpResponse::Ok().json(live.response()));
    }
    Ok(HttpResponse::Ok().json(unless_failed(live.finish().await?)?))
}

/// The whole response to a line of a batch, as JSON; its job is changed before. `number` tells it from all others: asked for
/// again after a restart, it is the same response.
///
/// # Errors
/// What is wrong with the body, or why the job failed.
pub(super) async fn answer(
    http: &web::Data<Http>,
    caller: &Caller,
    number: &str,
    body: &[u8],
    change: impl FnOnce(&mut Submit),
) -> Result<String, Problem> {
    let request: Create = body::parse(body)?;
    refuse_silent(&request)?;
    for (field, is_asked) in [("stream", request.stream), ("background", request.background)] {
        if is_asked == Some(true) {
            let message = format!("{field} is for requests that somebody waits for; leave it out");
            return Err(Problem::of(field, message));
        }
    }
    let shelf = Shelf::new(http.clone(), caller);
    // Answered and kept before a restart: its conversation has that answer already.
    if let Ok(Record { response, .. }) = shelf.response(&format!("resp_{number}")).await
        && response.status.is_answer()
    {
        return Ok(json(&response));
    }
    let Prepared { plan, input, _room: room, .. } = prepare(&shelf, request, number, None).await?;
    let Plan { mut submit, response, names, carry } = plan;
    change(&mut submit);
    let turn = turn(http, caller, submit).await?;
    drop(room);
    let live = Live::new(turn, Scribe::new(response, names, carry), Keeper { shelf, input, job: None });
    let response = unless_failed(live.finish().await?)?;
    if response.status == Status::Cancelled {
        return Err(Problem::new(
            Kind::Ended { is_cancelled: true },
            format!("{} was cancelled", response.id),
        ));
    }
    Ok(json(&response))
}

fn unless_failed(response: Response) -> Result<Response, Problem> {
    match response.error {
        Some(error) => Err(Problem::new(Kind::Ended { is_cancelled: false }, error.message)),
        None => Ok(response),
    }
}

fn json(response: &Response) -> String {
    serde_json::to_string(response).expect("a response becomes JSON")
}

/// # Errors
/// It is to have no answer, which only somebody can use who goes on from it on the same connection.
fn refuse_silent(request: &Create) -> Result<(), Problem> {
    if request.generate == Some(false) {
        return Err(Problem::of("generate", "generate: false is for a WebSocket"));
    }
    Ok(())
}

/// Begins a response; with it comes all that was said before its input. `last` is what its connection made last.
async fn begin(
    shelf: &Shelf,
    caller: &Caller,
    request: Create,
    last: Option<Last>,
) -> Result<(Live, Rc<Said>), Problem> {
    let is_silent = request.generate == Some(false);
    let Prepared { plan, input, before, _room } = prepare(shelf, request, &number(&shelf.http), last).await?;
    if plan.response.background {
        return Ok((background::begin(shelf, caller, plan, input).await?, before));
    }
    let Plan { submit, response, names, carry } = plan;
    let scribe = Scribe::new(response, names, carry);
    let keeper = Keeper { shelf: shelf.clone(), input, job: None };
    if is_silent {
        models::known(&shelf.http, &submit.model)?;
        shelf.http.services.check_prompt(&submit.model, submit.prompt).await?;
        return Ok((Live::silent(scribe, keeper), before));
    }
    Ok((Live::new(turn(&shelf.http, caller, submit).await?, scribe, keeper), before))
}

/// A response before its job is submitted.
struct Prepared {
    plan: Plan,
    input: Vec<Item>,
    /// All that was said before its input.
    before: Rc<Said>,
    _room: Option<SemaphorePermit<'static>>,
}

/// Looks at what is asked for and at what was said before. `number` becomes part of the response's id.
async fn prepare(
    shelf: &Shelf,
    mut request: Create,
    number: &str,
    last: Option<Last>,
) -> Result<Prepared, Problem> {
    request.check()?;
    if request.store != Some(false)
        && let Err(problem) = shelf.works().await
    {
        // Nobody asked for it by name: it is made, and says that it is not kept.
        let background = request.background == Some(true);
        let is_wanted = request.store == Some(true) || background || request.conversation.is_some();
        if is_wanted {
            return Err(problem);
        }
        request.store = Some(false);
    }
    let Gathered { before, input, _room } = gather(shelf, &mut request, number, last).await?;
    let items = before.items.iter().chain(&input);
    let plan = request.plan(items, format!("resp_{number}"), shelf.http.unix_s())?;
    Ok(Prepared { plan, input, before, _room })
}

/// Submits a response's job; what is wrong with it is told in the words of its request.
async fn turn(http: &Http, caller: &Caller, submit: Submit) -> Result<Turn, Problem> {
    Turn::begin(http, caller, submit).await.map_err(|problem| problem.renamed("logprobs", "top_logprobs"))
}

/// All that was said before, and the input. What is read for requests at one time is bounded; those that find no room wait.
async fn gather(
    shelf: &Shelf,
    request: &mut Create,
    number: &str,
    last: Option<Last>,
) -> Result<Gathered, Problem> {
    let given = given(request.input.take(), number)?;
    let last = last.filter(|last| request.previous_response_id.as_ref() == Some(&last.id));
    let is_read =
        last.is_none() && (request.conversation.is_some() || request.previous_response_id.is_some());
    let mut room = None;
    if is_read || given.iter().any(|given| matches!(given, Given::Reference(_))) {
        room = Some(ROOM.acquire_many(MAX_HISTORY_BYTES as u32).await.expect("it is never closed"));
    }
    let before = match last {
        Some(last) => last.said,
        None => Rc::new(before(shelf, request).await?),
    };
    let (input, referenced) = input(shelf, given, &before).await?;
    // What it does not take is for others.
    let taken = referenced + if is_read { before.bytes } else { 0 };
    room.as_mut().map(|room| room.split(MAX_HISTORY_BYTES.saturating_sub(taken)));
    Ok(Gathered { before, input, _room: room })
}

/// All that was said before.
async fn before(shelf: &Shelf, request: &Create) -> Result<Said, Problem> {
    if let Some(conversation) = request.conversation() {
        return shelf.all_items(conversation).await;
    }
    let Some(id) = request.previous_response_id.as_deref() else { return Ok(Said::default()) };
    let refused = |what: &str| {
        let shown = items::shown(id);
        Problem::of("previous_response_id", format!("response {shown:?} {what}"))
    };
    let record = match shelf.response(id).await {
        Err(problem) if problem.kind == Kind::NotFound => return Err(refused("is not kept")),
        record => background::current(shelf, record?).await?,
    };
    if !record.response.status.is_over() {
        return Err(refused("is not over yet"));
    }
    if let Some(conversation) = record.response.conversation {
        return Err(refused(&format!("belongs to conversation {:?}; go on with that", conversation.id)));
    }
    shelf.history(id).await
}

/// What the request itself gives: items, each with an id, and references to others.
fn given(input: Option<Input>, number: &str) -> Result<Vec<Given>, Problem> {
    let values = match input {
        None => return Ok(Vec::new()),
        Some(Input::Text(text)) => {
            let (id, role) = (format!("msg_{number}_i0"), "user".to_owned());
            let content = vec![Part::InputText { text }];
            let item = Item::Message { id, status: ItemStatus::Completed, role, content };
            return Ok(vec![Given::Item(item)]);
        }
        Some(Input::Items(values)) => values,
    };
    let given = |(place, value)| match items::read(value, &format!("input[{place}]"))? {
        Given::Item(item) if item.id().is_empty() => {
            let id = format!("{}_{number}_i{place}", item.prefix());
            Ok(Given::Item(item.with_id(id)))
        }
        given => Ok(given),
    };
    values.into_iter().enumerate().map(given).collect()
}

/// The request's own items, with those that it refers to, and how many bytes were read for these. What is there already is not
/// said twice.
async fn input(shelf: &Shelf, given: Vec<Given>, before: &Said) -> Result<(Vec<Item>, usize), Problem> {
    let mut wanted = HashMap::new();
    for (place, given) in given.iter().enumerate() {
        if let Given::Reference(id) = given {
            wanted.entry(id.clone()).or_insert(place);
        }
    }
    let (mut found, mut bytes) = (HashMap::new(), 0);
    if !wanted.is_empty() {
        for item in &before.items {
            wanted.remove(item.id());
        }
        (found, bytes) = shelf.referenced(wanted, MAX_HISTORY_BYTES - before.bytes).await?;
    }
    let item = |given| match given {
        Given::Item(item) => Some(item),
        Given::Reference(id) => found.remove(&id),
    };
    Ok((given.into_iter().filter_map(item).collect(), bytes))
}

async fn input_tokens(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let mut request: Create = body::one(payload).await?;
    request.check()?;
    let (number, shelf) = (number(&http), Shelf::new(http, &caller));
    let Gathered { before, input, _room } = gather(&shelf, &mut request, &number, None).await?;
    let Plan { submit, .. } = request.plan(before.items.iter().chain(&input), String::new(), 0)?;
    models::known(&shelf.http, &submit.model)?;
    let input_tokens = shelf.http.services.count_tokens(&submit.model, submit.prompt).await?;
    Ok(HttpResponse::Ok().json(InputTokens { object: "response.input_tokens", input_tokens }))
}

async fn retrieve(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
    query: Result<web::Query<Retrieve>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query: Retrieve = body::query(query)?;
    let shelf = Shelf::new(http, &caller);
    let record = shelf.response(&id).await?;
    if query.stream == Some(true) {
        let live = background::read(&shelf, &record).await.map_err(|problem| match problem.kind {
            Kind::NotFound => {
                let message = "the events of this response are not kept any more; it is told without stream";
                Problem::new(Kind::NotFound, message)
            }
            _ => problem,
        })?;
        let live = live.ok_or_else(|| Problem::of("stream", "stream is for a response in the background"))?;
        return Ok(live.stream(query.starting_after));
    }
    Ok(HttpResponse::Ok().json(background::current(&shelf, record).await?.response))
}

async fn delete(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let shelf = Shelf::new(http, &caller);
    let record = shelf.response(&id).await?;
    shelf.forget(&id).await?;
    if let Some(job) = record.job.filter(|_| !record.response.status.is_over()) {
        // It may have ended meanwhile.
        let _ = background::cancel_job(&shelf, &job).await;
    }
    Ok(HttpResponse::Ok().json(Removed { id: id.into_inner(), object: "response", deleted: true }))
}

async fn cancel(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let shelf = Shelf::new(http, &caller);
    let record = shelf.response(&id).await?;
    Ok(HttpResponse::Ok().json(background::cancel(&shelf, record).await?))
}

async fn input_items(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
    query: Result<web::Query<Page>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let page = Page::read(query)?;
    let record = Shelf::new(http, &caller).response(&id).await?;
    Ok(HttpResponse::Ok().json(page.of(record.input)?))
}
