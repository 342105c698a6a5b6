//! What is kept of responses and conversations: a caller's own, on disk.
//!
//! A response is kept with its own input; what was said before it is found through the response that it follows, or in its
//! conversation.

use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::limits::MAX_HISTORY_BYTES;
use crate::object_disk::DAEMON;
use actix_web::web;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zllm_engine::SpeechStyle;
use zllm_state::{Object, ObjectError, ObjectName, ObjectOrder, ObjectStore};
use zllm_wire::JobId;

use super::items::Item;
use super::object::Response;

const RESPONSE: &str = "response";
/// Marks of responses whose jobs go on, of all tenants: what is over and not kept so is found by them after a restart.
const MARK: &str = "response in the background";
const CONVERSATION: &str = "conversation";

/// Items that are read at once.
const PAGE: usize = 256;

/// A response as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) response: Response,
    pub(super) input: Vec<Item>,
    /// Of one in the background.
    pub(super) job: Option<Job>,
}

/// The durable job of a response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) id: JobId,
    /// How its answer is written.
    pub(super) speech: SpeechStyle,
    /// Whether reasoning is given in a form to send back.
    pub(super) carry: bool,
}

/// Whose a response is that has a mark.
#[derive(Serialize, Deserialize)]
struct Mark {
    tenant: String,
}

/// What of a kept response says where it follows on.
#[derive(Deserialize)]
struct Link {
    response: LinkedResponse,
}

#[derive(Deserialize)]
struct LinkedResponse {
    previous_response_id: Option<String>,
}

/// A conversation as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) created_at: u64,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Why a history cannot be had.
enum NoHistory {
    Missing(String),
    TooLarge,
}

/// What is kept of one tenant.
#[derive(Clone)]
pub(super) struct Shelf {
    pub(super) http: web::Data<Http>,
    tenant: String,
}

/// Kind of a conversation's items.
fn items_of(conversation: &str) -> String {
    format!("item of {conversation}")
}

fn parsed<T: DeserializeOwned>(value: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(value)
        .map_err(|error| Problem::new(Kind::Failed, format!("what was kept cannot be read: {error}")))
}

fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("our own types become JSON")
}

impl Shelf {
    pub(super) fn new(http: web::Data<Http>, caller: &Caller) -> Self {
        Self { http, tenant: caller.tenant_name().to_owned() }
    }

    /// The responses whose jobs go on, or ended with the daemon, each with its tenant's shelf.
    pub(super) async fn marked(http: &web::Data<Http>) -> Result<Vec<(Self, String)>, Problem> {
        let objects = &http.services.objects;
        let marks = objects.list(MARK, DAEMON.to_owned(), None, usize::MAX, ObjectOrder::OldestFirst).await?;
        let mark = |object: Object| {
            let Mark { tenant } = parsed(&object.value)?;
            Ok((Self { http: http.clone(), tenant }, object.name.id))
        };
        marks.unwrap_or_default().into_iter().map(mark).collect()
    }

    fn mark(id: &str) -> ObjectName {
        ObjectName::new(MARK, DAEMON, id)
    }

    fn name(&self, kind: &str, id: &str) -> ObjectName {
        ObjectName::new(kind, &self.tenant, id)
    }

    fn object(&self, kind: &str, id: &str, value: Vec<u8>) -> Object {
        let created_ms = self.http.services.clock.unix_ms();
        Object { name: self.name(kind, id), created_ms, expires_ms: None, value, content: None }
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ObjectStore, u64) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Problem> {
        Ok(self.http.services.objects.with(work).await?)
    }

    /// Whether anything can be kept.
    ///
    /// # Errors
    /// Why not.
    pub(super) async fn works(&self) -> Result<(), Problem> {
        self.with(|_, _| Ok(())).await
    }

    /// A response.
    ///
    /// # Errors
    /// There is none of this id.
    pub(super) async fn response(&self, id: &str) -> Result<Record, Problem> {
        let found = self.http.services.objects.get(self.name(RESPONSE, id)).await?;
        let found = found.ok_or_else(|| nothing("response", id))?;
        parsed(&found.value)
    }

    /// Keeps a response and, in its conversation, what was said. What was deleted meanwhile stays away.
    pub(super) async fn keep(&self, record: &Record, is_new: bool, said: Vec<Item>) -> Result<(), Problem> {
        let response = &record.response;
        let (name, has_job) = (self.name(RESPONSE, &response.id), record.job.is_some());
        let mut objects = Vec::new();
        if response.store {
            objects.push(self.object(RESPONSE, &response.id, written(record)));
        }
        let (mark, goes_on) = (Self::mark(&response.id), !response.status.is_over());
        if goes_on {
            let value = written(&Mark { tenant: self.tenant.clone() });
            objects.push(Object { name: mark.clone(), ..self.object(MARK, "", value) });
        }
        let conversation = response.conversation.as_ref().map(|conversation| &conversation.id);
        let conversation_name = conversation.map(|id| self.name(CONVERSATION, id));
        let items: Vec<Object> = conversation
            .map(|id| said.iter().map(|item| self.object(&items_of(id), item.id(), written(item))).collect())
            .unwrap_or_default();
        self.with(move |store, now_ms| {
            if !is_new && store.get(&name)?.is_none() {
                objects.clear();
            }
            if let Some(conversation) = conversation_name
                && store.get(&conversation)?.is_some()
            {
                objects.extend(items);
            }
            store.put(&objects, now_ms)?;
            if !goes_on && has_job {
                store.delete(&[mark])?;
            }
            Ok(())
        })
        .await
    }

    /// Deletes a response.
    pub(super) async fn forget(&self, id: &str) -> Result<(), Problem> {
        let names = [self.name(RESPONSE, id), Self::mark(id)];
        self.with(move |store, _| Ok(store.delete(&names).map(drop)?)).await
    }

    /// All that was said up to the end of this response, the oldest first.
    ///
    /// # Errors
    /// Some of it is not kept any more, or it is too much.
    pub(super) async fn history(&self, id: &str) -> Result<Vec<Item>, Problem> {
        let (tenant, mut next) = (self.tenant.clone(), Some(id.to_owned()));
        let found = self.with(move |store, _| {
            let (mut found, mut bytes) = (Vec::new(), 0);
            while let Some(id) = next {
                let Some(object) = store.get(&ObjectName::new(RESPONSE, &tenant, &id))? else {
                    return Ok(Err(NoHistory::Missing(id)));
                };
                bytes += object.value.len();
                if bytes > MAX_HISTORY_BYTES {
                    return Ok(Err(NoHistory::TooLarge));
                }
                let link: Option<Link> = serde_json::from_slice(&object.value).ok();
                next = link.and_then(|link| link.response.previous_response_id);
                found.push(object.value);
            }
            Ok(Ok(found))
        });
        let found = found.await?.map_err(|why| self.no_history("previous_response_id", id, why))?;
        let mut said = Vec::new();
        for value in found.iter().rev() {
            let record: Record = parsed(value)?;
            said.extend(record.input);
            said.extend(record.response.output);
        }
        Ok(said)
    }

    fn no_history(&self, param: &str, id: &str, why: NoHistory) -> Problem {
        let shown = super::items::shown(id);
        Problem::of(
            param,
            match why {
                NoHistory::Missing(missing) if missing == id => format!("there is no response {shown:?}"),
                NoHistory::Missing(missing) => {
                    format!("response {missing:?}, which {shown:?} goes on from, is not kept any more")
                }
                NoHistory::TooLarge => {
                    format!("what was said before {shown:?} has more than {MAX_HISTORY_BYTES} bytes")
                }
            },
        )
    }

    /// Finds an item of any kept response by the id that it got there.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn item(&self, id: &str, param: &str) -> Result<Item, Problem> {
        let problem = || {
            Problem::of(
                param,
                format!("there is no item {:?}; it was not kept, or is another's", super::items::shown(id)),
            )
        };
        let number = id.split('_').nth(1).ok_or_else(problem)?;
        let record = self.response(&format!("resp_{number}")).await.map_err(|_| problem())?;
        let mut items = record.response.output.into_iter().chain(record.input);
        items.find(|item| item.id() == id).ok_or_else(problem)
    }

    /// Keeps a new conversation, with its first items.
    pub(super) async fn open(&self, id: &str, kept: &Kept, items: &[Item]) -> Result<(), Problem> {
        let mut objects = vec![self.object(CONVERSATION, id, written(kept))];
        objects.extend(items.iter().map(|item| self.object(&items_of(id), item.id(), written(item))));
        Ok(self.http.services.objects.put(objects).await?)
    }

    /// A conversation.
    ///
    /// # Errors
    /// There is none of this id.
    pub(super) async fn conversation(&self, id: &str) -> Result<Kept, Problem> {
        let found = self.http.services.objects.get(self.name(CONVERSATION, id)).await?;
        parsed(&found.ok_or_else(|| nothing("conversation", id))?.value)
    }

    /// Deletes a conversation with its items.
    ///
    /// # Errors
    /// There is none of this id.
    pub(super) async fn close(&self, id: &str) -> Result<(), Problem> {
        let (name, kind, tenant) = (self.name(CONVERSATION, id), items_of(id), self.tenant.clone());
        let was = self.with(move |store, _| {
            let was = store.delete(&[name])?;
            loop {
                let items = store.list(&kind, &tenant, None, PAGE, ObjectOrder::OldestFirst)?;
                let names: Vec<_> = items.into_iter().flatten().map(|item| item.name).collect();
                if names.is_empty() {
                    return Ok(was);
                }
                store.delete(&names)?;
            }
        });
        if was.await? == [true] { Ok(()) } else { Err(nothing("conversation", id)) }
    }

    /// Some of a conversation's items; `None` when none has the id `after`.
    pub(super) async fn items(
        &self,
        conversation: &str,
        after: Option<String>,
        limit: usize,
        order: ObjectOrder,
    ) -> Result<Option<Vec<Item>>, Problem> {
        let (kind, tenant) = (items_of(conversation), self.tenant.clone());
        let found = self.http.services.objects.list(kind, tenant, after, limit, order).await?;
        found.map(|found| found.iter().map(|object| parsed(&object.value)).collect()).transpose()
    }

    /// All items of a conversation, the oldest first.
    ///
    /// # Errors
    /// There is none of this id, or it has too much.
    pub(super) async fn all_items(&self, conversation: &str) -> Result<Vec<Item>, Problem> {
        let name = self.name(CONVERSATION, conversation);
        let (kind, tenant) = (items_of(conversation), self.tenant.clone());
        let found = self.with(move |store, _| {
            if store.get(&name)?.is_none() {
                return Ok(Err(NoHistory::Missing(String::new())));
            }
            let (mut found, mut bytes, mut after) = (Vec::<Vec<u8>>::new(), 0, None::<String>);
            while let Some(items) =
                store.list(&kind, &tenant, after.as_deref(), PAGE, ObjectOrder::OldestFirst)?
            {
                let Some(last) = items.last() else { break };
                after = Some(last.name.id.clone());
                bytes += items.iter().map(|item| item.value.len()).sum::<usize>();
                if bytes > MAX_HISTORY_BYTES {
                    return Ok(Err(NoHistory::TooLarge));
                }
                found.extend(items.into_iter().map(|item| item.value));
            }
            Ok(Ok(found))
        });
        let found = found.await?.map_err(|why| match why {
            NoHistory::Missing(_) => nothing("conversation", conversation),
            NoHistory::TooLarge => {
                let message =
                    format!("conversation {conversation:?} has more than {MAX_HISTORY_BYTES} bytes");
                Problem::of("conversation", message)
            }
        })?;
        found.iter().map(|value| parsed(value)).collect()
    }

    /// Puts items into a conversation that is there.
    pub(super) async fn add(&self, conversation: &str, items: &[Item]) -> Result<(), Problem> {
        let kind = items_of(conversation);
        let objects = items.iter().map(|item| self.object(&kind, item.id(), written(item))).collect();
        Ok(self.http.services.objects.put(objects).await?)
    }

    /// An item of a conversation.
    ///
    /// # Errors
    /// There is none of this id.
    pub(super) async fn item_of(&self, conversation: &str, id: &str) -> Result<Item, Problem> {
        let found = self.http.services.objects.get(self.name(&items_of(conversation), id)).await?;
        parsed(&found.ok_or_else(|| nothing("item", id))?.value)
    }

    /// Takes an item out of a conversation; whether it was there.
    pub(super) async fn remove(&self, conversation: &str, id: &str) -> Result<bool, Problem> {
        Ok(self.http.services.objects.delete(self.name(&items_of(conversation), id)).await?)
    }
}

fn nothing(what: &str, id: &str) -> Problem {
    let shown: String = id.chars().take(100).collect();
    Problem::new(Kind::NotFound, format!("there is no {what} {shown:?}"))
}
