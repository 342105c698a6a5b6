//! `/v1/conversations`: what is said, kept under a name of its own, for any number of responses.

use crate::http::caller::Caller;
use crate::http::problem::Problem;
use crate::http::{Http, body};
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use zllm_state::ObjectOrder;

use super::items::{Given, Item, read};
use super::list::{List, Page, Removed};
use super::shelf::{Kept, Shelf};

/// What a conversation is made with.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "ConversationRequest")]
pub(super) struct Create {
    items: Option<Vec<Value>>,
    metadata: Option<BTreeMap<String, String>>,
}

/// What a conversation gets.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ConversationItemsRequest")]
pub(super) struct Add {
    items: Vec<Value>,
}

/// A conversation.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Conversation {
    id: String,
    /// `conversation`.
    object: &'static str,
    /// Seconds since the Unix epoch.
    created_at: u64,
    metadata: BTreeMap<String, String>,
}

impl Conversation {
    fn of(id: String, kept: Kept) -> HttpResponse {
        let Kept { created_at, metadata, .. } = kept;
        HttpResponse::Ok().json(Self { id, object: "conversation", created_at, metadata })
    }
}

/// Items with ids of their own.
fn items(values: Vec<Value>, number: &str) -> Result<Vec<Item>, Problem> {
    let item = |(place, value): (usize, Value)| match read(value, &format!("items[{place}]"))? {
        Given::Item(item) => {
            let id = format!("{}_{number}_c{place}", item.prefix());
            Ok(item.with_id(id))
        }
        Given::Reference(_) => {
            let param = format!("items[{place}].type");
            Err(Problem::of(&param, format!("{param} is \"item_reference\", which is only for responses")))
        }
    };
    values.into_iter().enumerate().map(item).collect()
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let given = body::read(payload).await?;
    // Nothing at all is a conversation without anything.
    let create: Create = if given.is_empty() { Create::default() } else { body::parse(&given)? };
    let number = super::number(&http);
    let (id, created_at) = (format!("conv_{number}"), http.unix_s());
    let items = items(create.items.unwrap_or_default(), &number)?;
    let kept = Kept::new(created_at, create.metadata.unwrap_or_default());
    let kept = Shelf::new(http, &caller).open(&id, kept, &items).await?;
    Ok(Conversation::of(id, kept))
}

pub(super) async fn retrieve(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let kept = Shelf::new(http, &caller).conversation(&id).await?;
    Ok(Conversation::of(id.into_inner(), kept))
}

/// Gives a conversation other metadata.
pub(super) async fn update(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let update: Create = body::one(payload).await?;
    let change = |kept: &mut Kept| {
        if let Some(metadata) = update.metadata {
            kept.metadata = metadata;
        }
    };
    let kept = Shelf::new(http, &caller).change(&id, &[], change).await?;
    Ok(Conversation::of(id.into_inner(), kept))
}

pub(super) async fn delete(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    Shelf::new(http, &caller).close(&id).await?;
    Ok(HttpResponse::Ok().json(Removed {
        id: id.into_inner(),
        object: "conversation.deleted",
        deleted: true,
    }))
}

pub(super) async fn list(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
    query: Result<web::Query<Page>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let page = Page::read(query)?;
    let shelf = Shelf::new(http, &caller);
    shelf.conversation(&id).await?;
    let order = if page.is_newest_first() { ObjectOrder::NewestFirst } else { ObjectOrder::OldestFirst };
    let found = shelf.items(&id, page.after.clone(), page.limit() + 1, order).await?;
    let found = found.ok_or_else(|| page.no_such_item())?;
    Ok(HttpResponse::Ok().json(List::first(found, page.limit())))
}

pub(super) async fn add(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let add: Add = body::one(payload).await?;
    let items = items(add.items, &super::number(&http))?;
    Shelf::new(http, &caller).change(&id, &items, |_| {}).await?;
    let count = items.len();
    Ok(HttpResponse::Ok().json(List::first(items, count)))
}

pub(super) async fn item(
    http: web::Data<Http>,
    caller: Caller,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, Problem> {
    let (conversation, item) = path.into_inner();
    Ok(HttpResponse::Ok().json(Shelf::new(http, &caller).item_of(&conversation, &item).await?))
}

/// Takes an item out, and answers with its conversation.
pub(super) async fn remove(
    http: web::Data<Http>,
    caller: Caller,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, Problem> {
    let (conversation, item) = path.into_inner();
    let kept = Shelf::new(http, &caller).remove(&conversation, &item).await?;
    Ok(Conversation::of(conversation, kept))
}
