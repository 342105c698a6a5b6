//! What is kept of responses and conversations: a caller's own, on disk.
//!
//! A response is kept with its own input; what was said before it is found through the response that it follows, or in its
//! conversation.
//!
//! Each item of a conversation is kept as long as anything else; the conversation itself from its last change on, and it knows
//! how many items it has, so that one of which some have expired is never gone on from as if it were whole.

use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::limits::MAX_HISTORY_BYTES;
use crate::object_disk::DAEMON;
use crate::services::submit::off_the_loop;
use actix_web::web;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use zllm_engine::SpeechStyle;
use zllm_state::{Object, ObjectError, ObjectName, ObjectOrder, ObjectStore};
use zllm_wire::JobId;

use super::Said;
use super::items::{Item, shown};
use super::object::{Response, Status};

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

/// What of a kept response says how far it is, and where it follows on.
#[derive(Deserialize)]
struct Link {
    response: LinkedResponse,
}

#[derive(Deserialize)]
struct LinkedResponse {
    status: Status,
    previous_response_id: Option<String>,
}

/// A conversation as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) created_at: u64,
    pub(super) metadata: BTreeMap<String, String>,
    /// How many it has, those that have expired among them.
    items: u64,
}

impl Kept {
    /// Without items.
    pub(super) fn new(created_at: u64, metadata: BTreeMap<String, String>) -> Self {
        Self { created_at, metadata, items: 0 }
    }
}

/// Values as they are kept, the oldest first, and how many bytes they have; or why there are none.
type Found = Result<(Vec<Vec<u8>>, usize), NoHistory>;

/// Why a history cannot be had.
enum NoHistory {
    Missing(String),
    TooLarge,
    /// So many items.
    Expired(u64),
    Unreadable(Problem),
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

fn is_over(value: &[u8]) -> bool {
    serde_json::from_slice::<Link>(value).is_ok_and(|link| link.response.status.is_over())
}

/// A conversation with a change and so many items more, kept from now on.
fn changed(
    object: Object,
    items: usize,
    now_ms: u64,
    change: impl FnOnce(&mut Kept),
) -> Result<(Kept, Object), Problem> {
    let mut kept: Kept = parsed(&object.value)?;
    change(&mut kept);
    kept.items += items as u64;
    let object = Object { created_ms: now_ms, value: written(&kept), ..object };
    Ok((kept, object))
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

    /// Keeps a response and, in its conversation, what was said. What was deleted meanwhile stays away; what is over stays as
    /// it is, and is given back.
    pub(super) async fn keep(
        &self,
        record: &Record,
        is_new: bool,
        said: &[Item],
    ) -> Result<Option<Response>, Problem> {
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
        let conversation = response.conversation.as_ref().map(|conversation| conversation.id.as_str());
        let items = conversation.map(|id| self.item_objects(id, said)).unwrap_or_default();
        let conversation = conversation.map(|id| self.name(CONVERSATION, id));
        let kept = self.with(move |store, now_ms| {
            let kept = if is_new { None } else { store.get(&name)? };
            let is_over = kept.as_ref().is_some_and(|kept| is_over(&kept.value));
            if is_new || (kept.is_some() && !is_over) {
                let conversation = conversation.map(|name| store.get(&name)).transpose()?.flatten();
                // One that cannot be read gets nothing more.
                if let Some(Ok((_, object))) =
                    conversation.map(|object| changed(object, items.len(), now_ms, |_| {}))
                {
                    objects.push(object);
                    objects.extend(items);
                }
                store.put(&objects, now_ms)?;
            }
            if !goes_on && has_job {
                store.delete(&[mark])?;
            }
            Ok(kept.filter(|_| is_over))
        });
        let kept = kept.await?.map(|kept| parsed::<Record>(&kept.value)).transpose()?;
        Ok(kept.map(|record| record.response))
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
    pub(super) async fn history(&self, id: &str) -> Result<Said, Problem> {
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
            found.reverse();
            Ok(Ok((found, bytes)))
        });
        let found: Found = found.await?;
        let (found, bytes) = found.map_err(|why| no_history("previous_response_id", id, why))?;
        let said = move || {
            let mut items = Vec::new();
            for value in found {
                let record: Record = parsed(&value)?;
                items.extend(record.input);
                items.extend(record.response.output);
            }
            Ok(Said { items, bytes })
        };
        off_the_loop(&self.http.services, said).await?
    }

    /// Items of kept responses by the ids that they got there, and how many bytes were read for them; `wanted` has the place of
    /// each in the input. What was kept of a response is read once, however many of its items are wanted.
    ///
    /// # Errors
    /// One is not there, or what there is of their responses has more than `at_most` bytes.
    pub(super) async fn referenced(
        &self,
        wanted: HashMap<String, usize>,
        at_most: usize,
    ) -> Result<(HashMap<String, Item>, usize), Problem> {
        let names: BTreeSet<ObjectName> =
            wanted.keys().map(|id| self.name(RESPONSE, &response_of(id))).collect();
        let found = self.with(move |store, _| {
            let (mut found, mut bytes) = (Vec::new(), 0);
            for name in names {
                let Some(object) = store.get(&name)? else {
                    return Ok(Err(NoHistory::Missing(name.id)));
                };
                bytes += object.value.len();
                if bytes > at_most {
                    return Ok(Err(NoHistory::TooLarge));
                }
                found.push(object.value);
            }
            Ok(Ok((found, bytes)))
        });
        let found: Found = found.await?;
        let missing = |is_it: &dyn Fn(&str) -> bool| {
            wanted.iter().filter(|(id, _)| is_it(id)).min_by_key(|(_, place)| **place)
        };
        let (found, bytes) = match found {
            Ok(found) => found,
            Err(NoHistory::Missing(response)) => {
                let (id, place) = missing(&|id| response_of(id) == response).expect("somebody wants it");
                return Err(no_item(id, *place));
            }
            Err(why) => return Err(no_history("input", "", why)),
        };
        let items = move || {
            let mut items = HashMap::new();
            for value in found {
                let record: Record = parsed(&value)?;
                let all = record.input.into_iter().chain(record.response.output);
                items.extend(all.map(|item| (item.id().to_owned(), item)));
            }
            Ok(items)
        };
        let items: Result<HashMap<String, Item>, Problem> = off_the_loop(&self.http.services, items).await?;
        let items = items?;
        match missing(&|id| !items.contains_key(id)) {
            Some((id, place)) => Err(no_item(id, *place)),
            None => Ok((items, bytes)),
        }
    }

    fn item_objects(&self, conversation: &str, items: &[Item]) -> Vec<Object> {
        let kind = items_of(conversation);
        items.iter().map(|item| self.object(&kind, item.id(), written(item))).collect()
    }

    /// Keeps a new conversation, with its first items.
    pub(super) async fn open(&self, id: &str, mut kept: Kept, items: &[Item]) -> Result<Kept, Problem> {
        kept.items = items.len() as u64;
        let mut objects = self.item_objects(id, items);
        objects.push(self.object(CONVERSATION, id, written(&kept)));
        self.http.services.objects.put(objects).await?;
        Ok(kept)
    }

    /// Changes a conversation, and puts items into it; it as it is then.
    ///
    /// # Errors
    /// There is none of this id.
    pub(super) async fn change(
        &self,
        id: &str,
        items: &[Item],
        change: impl FnOnce(&mut Kept) + Send + 'static,
    ) -> Result<Kept, Problem> {
        let (name, mut objects) = (self.name(CONVERSATION, id), self.item_objects(id, items));
        let changed = self.with(move |store, now_ms| {
            let Some(object) = store.get(&name)? else { return Ok(None) };
            let changed = changed(object, objects.len(), now_ms, change);
            if let Ok((_, object)) = &changed {
                objects.push(object.clone());
                store.put(&objects, now_ms)?;
            }
            Ok(Some(changed))
        });
        let (kept, _) = changed.await?.ok_or_else(|| nothing("conversation", id))??;
        Ok(kept)
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
    /// There is none of this id, it has too much, or some of it has expired.
    pub(super) async fn all_items(&self, conversation: &str) -> Result<Said, Problem> {
        let name = self.name(CONVERSATION, conversation);
        let (kind, tenant) = (items_of(conversation), self.tenant.clone());
        let found = self.with(move |store, _| {
            let Some(object) = store.get(&name)? else {
                return Ok(Err(NoHistory::Missing(name.id)));
            };
            let kept: Kept = match parsed(&object.value) {
                Ok(kept) => kept,
                Err(problem) => return Ok(Err(NoHistory::Unreadable(problem))),
            };
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
            let gone = kept.items.saturating_sub(found.len() as u64);
            Ok(if gone > 0 { Err(NoHistory::Expired(gone)) } else { Ok((found, bytes)) })
        });
        let found: Found = found.await?;
        let (found, bytes) = found.map_err(|why| match why {
            NoHistory::Missing(_) => nothing("conversation", conversation),
            why => no_history("conversation", conversation, why),
        })?;
        let said = move || {
            let items = found.iter().map(|value| parsed(value)).collect::<Result<_, Problem>>()?;
            Ok(Said { items, bytes })
        };
        off_the_loop(&self.http.services, said).await?
    }

    /// An item of a conversation.
    ///
    /// # Errors
    /// There is none of this id.
    pub(super) async fn item_of(&self, conversation: &str, id: &str) -> Result<Item, Problem> {
        let found = self.http.services.objects.get(self.name(&items_of(conversation), id)).await?;
        parsed(&found.ok_or_else(|| nothing("item", id))?.value)
    }

    /// Takes an item out of a conversation, which is given back.
    ///
    /// # Errors
    /// There is no such conversation, or no such item in it.
    pub(super) async fn remove(&self, conversation: &str, id: &str) -> Result<Kept, Problem> {
        let (name, item) = (self.name(CONVERSATION, conversation), self.name(&items_of(conversation), id));
        let removed = self.with(move |store, now_ms| {
            let Some(object) = store.get(&name)? else { return Ok(Err(nothing("conversation", &name.id))) };
            if store.get(&item)?.is_none() {
                return Ok(Err(nothing("item", &item.id)));
            }
            let (kept, object) =
                match changed(object, 0, now_ms, |kept| kept.items = kept.items.saturating_sub(1)) {
                    Ok(changed) => changed,
                    Err(problem) => return Ok(Err(problem)),
                };
            // In this order: after a crash in between it may not miss an item that somebody took out.
            store.put(&[object], now_ms)?;
            store.delete(&[item])?;
            Ok(Ok(kept))
        });
        removed.await?
    }
}

/// The response that an item's id says it was kept with.
fn response_of(item: &str) -> String {
    format!("resp_{}", item.split('_').nth(1).unwrap_or_default())
}

fn no_item(id: &str, place: usize) -> Problem {
    let message = format!("there is no item {:?}; it was not kept, or is another's", shown(id));
    Problem::of(&format!("input[{place}].id"), message)
}

fn no_history(param: &str, id: &str, why: NoHistory) -> Problem {
    let id = shown(id);
    let message = match why {
        NoHistory::Missing(missing) if missing == id => format!("there is no response {id:?}"),
        NoHistory::Missing(missing) => {
            format!("response {missing:?}, which {id:?} goes on from, is not kept any more")
        }
        NoHistory::TooLarge => {
            format!("what was said before and what is referred to have more than {MAX_HISTORY_BYTES} bytes")
        }
        NoHistory::Expired(items) => format!(
            "{items} items of conversation {id:?} have expired; make a new one of those that are still listed"
        ),
        NoHistory::Unreadable(problem) => return problem,
    };
    Problem::of(param, message)
}

fn nothing(what: &str, id: &str) -> Problem {
    let shown: String = id.chars().take(100).collect();
    Problem::new(Kind::NotFound, format!("there is no {what} {shown:?}"))
}
