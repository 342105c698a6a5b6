//! Texts become embeddings, whatever the protocol. Each text is a job of its own that ends with its prompt, so that queue,
//! tenants, classes and cancellation are those of all jobs.
//!
//! A request has a few of its texts in the queue at a time, in their order: a long list takes turns with what others ask.
//! What of a list is not in the queue yet is counted nowhere there, so lists have a bound of their own. A list that has begun is
//! not refused for what others did since: its next text waits a while for room.

use super::places::Place;
use super::submit::{arrive, load, off_the_loop, refuse};
use super::{Services, fault};
use crate::device::port::TextModel;
use crate::limits::{
    EMBEDDED_AT_ONCE, EMBEDDED_ROOM_PAUSE, EMBEDDED_ROOM_WAIT, MAX_EMBEDDED_LISTS, MAX_EMBEDDED_LISTS_BATCH,
    MAX_EMBEDDED_TEXTS,
};
use crate::scheduler::core::ConnectionId;
use crate::scheduler::log::JobLog;
use crate::scheduler::plan::ModelName;
use crate::scheduler::{HasRoom, Snapshot, SubmitJob, Submitted, Work};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;
use zllm_engine::{Pool, Pooling};
use zllm_wire::{Class, ErrorCode, Event, Fault, GenerationParams, JobId, Prompt, Tenant};

/// Texts to embed.
pub(crate) struct Embed {
    pub(crate) model: String,
    /// Texts or token ids; at least one and at most [`MAX_EMBEDDED_TEXTS`].
    pub(crate) texts: Vec<Prompt>,
    /// How many of an embedding's values are wanted, from the first on; `None`: all.
    pub(crate) dimensions: Option<u32>,
    /// Leaves out of a text what does not fit into the model's context, instead of refusing it.
    pub(crate) cut: bool,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) class: Class,
}

/// Their embeddings.
pub(crate) struct Embedded {
    /// In the order of the texts, each of length 1.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Of all texts together.
    pub(crate) prompt_tokens: u64,
}

/// Why there are none.
pub(crate) struct EmbedFault {
    pub(crate) about: About,
    pub(crate) fault: Fault,
}

/// What of a request is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    Texts,
    /// One of several, by its place.
    Text(usize),
    Dimensions,
    /// The job of a text failed or was cancelled.
    Job,
    /// Nothing of it, or the model.
    Other,
}

impl From<Fault> for EmbedFault {
    fn from(fault: Fault) -> Self {
        Self { about: About::Other, fault }
    }
}

/// Computes embeddings; the jobs are the connection's.
pub(crate) async fn embed(
    request: Embed,
    connection: ConnectionId,
    services: &Services,
) -> Result<Embedded, EmbedFault> {
    let dimensions = request.dimensions.map(|count| count as usize);
    let ready = prepare(request, connection, services).await;
    let Ready { asked, prompts, _list } = ready.map_err(|EmbedFault { about, fault }| {
        let fault = refuse(services, fault);
        EmbedFault { about, fault }
    })?;
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let mut vectors = Vec::with_capacity(prompts.len());
    let mut under_way: VecDeque<UnderWay> = VecDeque::with_capacity(EMBEDDED_AT_ONCE);
    for prompt in prompts {
        let give_up = services.clock.time() + EMBEDDED_ROOM_WAIT;
        let begun = loop {
            if under_way.len() < EMBEDDED_AT_ONCE {
                match asked.begin(prompt.clone(), services).await {
                    Err(Fault { code: ErrorCode::Refused { .. }, .. }) if !under_way.is_empty() => {}
                    // Nothing of it is in the queue: others have filled that since it began.
                    Err(Fault { code: ErrorCode::Refused { .. }, .. })
                        if !vectors.is_empty() && services.clock.time() < give_up =>
                    {
                        tokio::time::sleep(EMBEDDED_ROOM_PAUSE).await;
                        continue;
                    }
                    begun => break begun?,
                }
            }
            // There is room again when one of its own is done.
            let first = under_way.pop_front().expect("a full list, or one that is not empty");
            vectors.push(first.vector(dimensions, services).await?);
        };
        under_way.push_back(begun);
    }
    for last in under_way {
        vectors.push(last.vector(dimensions, services).await?);
    }
    Ok(Embedded { vectors, prompt_tokens })
}

/// A request with everything done that needs the model's text side.
struct Ready<'a> {
    asked: Asked,
    prompts: Vec<Vec<u32>>,
    /// Kept while some of them are not in the queue.
    _list: Option<Place<'a>>,
}

async fn prepare(
    request: Embed,
    connection: ConnectionId,
    services: &Services,
) -> Result<Ready<'_>, EmbedFault> {
    let Embed { model, texts, dimensions, cut, tenant, class } = request;
    let tenant = tenant.map(String::from).unwrap_or_default();
    check_count(texts.len())?;
    let list = take_list(texts.len(), class, services)?;
    services.ask_scheduler(HasRoom { class, tenant: tenant.clone(), bytes: 0 }).await??;
    let _arriving = arrive(class, services)?;
    let text = load(&model, services).await?.text;
    let facts = text.facts();
    let pooling = facts.pooling.clone().map_err(|message| fault(ErrorCode::Invalid, message))?;
    check_dimensions(dimensions, facts.width)?;
    let prompts = off_the_loop(services, move || encode(text.as_ref(), &texts, cut)).await??;
    let asked = Asked { model: model.into(), tenant, class, pooling, connection };
    Ok(Ready { asked, prompts, _list: list })
}

fn check_count(texts: usize) -> Result<(), EmbedFault> {
    if (1..=MAX_EMBEDDED_TEXTS).contains(&texts) {
        return Ok(());
    }
    let message = format!("a list of {texts} texts; from 1 to {MAX_EMBEDDED_TEXTS} work");
    Err(EmbedFault { about: About::Texts, fault: fault(ErrorCode::Invalid, message) })
}

fn check_dimensions(dimensions: Option<u32>, width: usize) -> Result<(), EmbedFault> {
    match dimensions {
        Some(asked) if !(1..=width).contains(&(asked as usize)) => {
            let message =
                format!("dimensions is {asked}; the model's embeddings have {width}, from 1 on work");
            Err(EmbedFault { about: About::Dimensions, fault: fault(ErrorCode::Invalid, message) })
        }
        _ => Ok(()),
    }
}

/// A place for a list that is longer than what of it is in the queue.
fn take_list(texts: usize, class: Class, services: &Services) -> Result<Option<Place<'_>>, Fault> {
    if texts <= EMBEDDED_AT_ONCE {
        return Ok(None);
    }
    services.embedded_lists.take(class).map(Some).ok_or_else(|| {
        let most = if class == Class::Batch { MAX_EMBEDDED_LISTS_BATCH } else { MAX_EMBEDDED_LISTS };
        let message = format!("{most} lists of more than {EMBEDDED_AT_ONCE} texts are being embedded");
        fault(ErrorCode::Refused { retry_after_ms: 1000 }, message)
    })
}

fn encode(model: &dyn TextModel, texts: &[Prompt], cut: bool) -> Result<Vec<Vec<u32>>, EmbedFault> {
    let several = texts.len() > 1;
    let encode = |(index, text)| {
        model.encode_whole(text, cut).map_err(|fault| {
            let about = if several { About::Text(index) } else { About::Texts };
            EmbedFault { about, fault }
        })
    };
    texts.iter().enumerate().map(encode).collect()
}

/// What all jobs of a request have in common.
struct Asked {
    model: ModelName,
    tenant: String,
    class: Class,
    pooling: Pooling,
    connection: ConnectionId,
}

/// A text in the queue, or on a device.
struct UnderWay {
    job: JobId,
    pool: oneshot::Receiver<Pool>,
    log: Arc<JobLog>,
}

impl Asked {
    async fn begin(&self, prompt: Vec<u32>, services: &Services) -> Result<UnderWay, Fault> {
        let (reply, pool) = oneshot::channel();
        let job = SubmitJob {
            model: self.model.clone(),
            tenant: self.tenant.clone(),
            bytes: prompt.len() * size_of::<u32>(),
            prompt,
            max_tokens: 0,
            work: Work::Embed(self.pooling, reply),
            params: GenerationParams { max_tokens: Some(0), ..GenerationParams::default() },
            session: None,
            label: None,
            class: self.class,
            batch: None,
            key: None,
            arrived_at: services.clock.time(),
            start_by: None,
            deadline: None,
            owner: Some(self.connection),
        };
        let Submitted { job, log, .. } = services.ask_scheduler(job).await??;
        Ok(UnderWay { job, pool, log })
    }
}

impl UnderWay {
    async fn vector(self, dimensions: Option<usize>, services: &Services) -> Result<Vec<f32>, EmbedFault> {
        let ended = |why: String| EmbedFault { about: About::Job, fault: fault(ErrorCode::Failed, why) };
        let Self { job, pool, log } = self;
        if let Ok(pool) = pool.await {
            return pool.finish(dimensions).map_err(|why| ended(why.to_string()));
        }
        // It ended otherwise, and its log says why.
        let mut reader = log.reader(0);
        while let Some(events) = reader.next().await.map_err(|why| fault(ErrorCode::Failed, why))? {
            if let Some((_, Event::Failed { message })) = events.last() {
                return Err(ended(message.clone()));
            }
        }
        if services.ask_scheduler(Snapshot).await?.draining {
            return Err(fault(ErrorCode::Draining, "the daemon is stopping").into());
        }
        Err(ended(format!("job {job} was cancelled")))
    }
}
