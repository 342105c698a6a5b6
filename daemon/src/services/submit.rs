//! From a request to a job: the model is loaded, the prompt tokenized off the event loop, the job submitted, its log streamed.

use super::kv::session_fault;
use super::places::Place;
use super::{Services, fault, gone};
use crate::device::port::{Generate, Loaded, Objection, TextModel, too_long};
use crate::inspect::{self, InspectError};
use crate::kv_store::{ContinueSession, HoldPrefixes};
use crate::limits::{MAX_ARRIVING, MAX_ARRIVING_BATCH, MAX_LABEL_BYTES, MAX_LOGPROBS_PER_JOB, RETRY_AFTER};
use crate::metrics::Outcome;
use crate::scheduler::core::ConnectionId;
use crate::scheduler::models::LoadState;
use crate::scheduler::{HasRoom, SubmitJob, Submitted, Work};
use std::path::PathBuf;
use std::time::Duration;
use zllm_engine::SpeechStyle;
use zllm_state::{BLOCK_TOKENS, SessionName};
use zllm_wire::limits::MAX_CHOICES;
use zllm_wire::{Class, ErrorCode, Fault, GenerationParams, InspectTarget, Prompt, Submit, Template, Tenant};

/// Makes a job, and tells how its answers are written. One that is not detached is cancelled when the connection is gone.
pub(crate) async fn submit(
    request: Submit,
    connection: ConnectionId,
    services: &Services,
) -> Result<(Submitted, SpeechStyle), Objection> {
    let arrived_at = services.clock.time();
    let Submit { model, prompt, params, session, tenant, detached, label, .. } = request;
    let Submit { class, deadline_ms, max_wait_ms, key, batch, .. } = request;
    if key.is_some() && !detached {
        let message =
            "a key is for a detached job: one that ends with its connection is never asked for again";
        return Err(refuse(services, fault(ErrorCode::Invalid, message)).into());
    }
    if label.as_ref().is_some_and(|label| label.len() > MAX_LABEL_BYTES) {
        let message = format!("the label is longer than {MAX_LABEL_BYTES} bytes");
        return Err(refuse(services, fault(ErrorCode::Invalid, message)).into());
    }
    let bytes = request_bytes(&prompt, &params);
    let tenant = tenant.map(String::from).unwrap_or_default();
    // Before anything is tokenized; one with a key may be known, whatever the queue holds.
    if key.is_none() {
        services
            .ask_scheduler(HasRoom { class, tenant: tenant.clone(), bytes })
            .await?
            .map_err(|fault| refuse(services, fault))?;
    }
    let ready = prepare(&model, (&tenant, class), prompt, params, services).await;
    let ready = ready.map_err(|objection| refuse(services, objection))?;
    services.note_arrival(services.clock.time().saturating_sub(arrived_at));
    let Ready { prompt, speech, params, max_tokens, samplers } = ready;
    let job = SubmitJob {
        model: model.as_str().into(),
        tenant,
        prompt,
        max_tokens,
        work: Work::Answer(samplers),
        params,
        session,
        label,
        class,
        batch,
        key,
        bytes,
        arrived_at,
        start_by: max_wait_ms.map(|ms| arrived_at + Duration::from_millis(ms)),
        deadline: deadline_ms.map(|ms| arrived_at + Duration::from_millis(ms)),
        owner: (!detached).then_some(connection),
    };
    let submitted = services.ask_scheduler(job).await??;
    tracing::debug!(job = %submitted.job, known = submitted.known, "accepted");
    Ok((submitted, speech))
}

impl Services {
    /// What `work` makes of a model's text side, off the event loop. The model is loaded if it is not.
    ///
    /// # Errors
    /// The model cannot be loaded, or too many are at it.
    pub(crate) async fn with_text<T: Send + 'static>(
        &self,
        model: &str,
        work: impl FnOnce(&dyn TextModel) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let _arriving = arrive(Class::Interactive, self)?;
        let loaded = load(model, self).await?;
        off_the_loop(self, move || work(&*loaded.text)).await
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// As for [`Self::with_text`], and when the model has no tokenizer.
    pub(crate) async fn tokenize(
        &self,
        model: &str,
        text: String,
        parse_special: bool,
        add_bos: bool,
    ) -> Result<Vec<u32>, Fault> {
        let tokens =
            self.with_text(model, move |model| model.tokenize(&text, parse_special, add_bos)).await?;
        tokens.map_err(|message| fault(ErrorCode::Invalid, message))
    }

    /// Tokens with the bytes of each.
    ///
    /// # Errors
    /// As for [`Self::with_text`], and a token that the model does not have.
    pub(crate) async fn pieces(
        &self,
        model: &str,
        tokens: Vec<u32>,
    ) -> Result<(Vec<u32>, Vec<Vec<u8>>), Fault> {
        let pieces = move |model: &dyn TextModel| model.pieces(&tokens).map(|pieces| (tokens, pieces));
        self.with_text(model, pieces).await?.map_err(|message| fault(ErrorCode::Invalid, message))
    }

    /// The text of tokens, for people: control tokens by name, broken characters replaced.
    ///
    /// # Errors
    /// As for [`Self::with_text`].
    pub(crate) async fn text_of(&self, model: &str, tokens: Vec<u32>) -> Result<String, Fault> {
        self.with_text(model, move |model| model.text_of(&tokens)).await
    }

    /// Tokens of a prompt as a job would have them, also where they are more than the context takes. One that continues a
    /// session is not counted.
    ///
    /// # Errors
    /// The model cannot be loaded, too many are at it, or the prompt makes no sense.
    pub(crate) async fn count_tokens(&self, model: &str, prompt: Prompt) -> Result<usize, Fault> {
        let _arriving = arrive(Class::Interactive, self)?;
        match self.encode(model, vec![prompt]).await?.remove(0) {
            Ok(tokens) => Ok(tokens.len()),
            Err(Fault { code: ErrorCode::TooLong { tokens, .. }, .. }) => Ok(tokens as usize),
            Err(fault) => Err(fault),
        }
    }

    /// Whether a prompt makes sense to a model and leaves room in its context.
    ///
    /// # Errors
    /// It does not, the model cannot be loaded, or too many are at it.
    pub(crate) async fn check_prompt(&self, model: &str, prompt: Prompt) -> Result<(), Fault> {
        let now_unix_s = (self.clock.unix_ms() / 1000) as i64;
        let check = move |text: &dyn TextModel| {
            let (tokens, _) = text.encode(&prompt, now_unix_s)?;
            check_length(tokens.len(), text.facts().context_tokens)
        };
        self.with_text(model, check).await?
    }

    /// Pins for a time what a job's prompt has in common with each of these prompts. How many tokens that is; none where one
    /// of them makes no sense by itself. The job has a place, so this needs none among those that arrive.
    ///
    /// # Errors
    /// The model cannot be loaded, or the prompt itself makes no sense.
    pub(crate) async fn hold_prefixes(
        &self,
        model: &str,
        tenant: Option<&Tenant>,
        prompt: Prompt,
        prefixes: Vec<(Prompt, Duration)>,
    ) -> Result<Vec<usize>, Fault> {
        let (mut prompts, times): (Vec<Prompt>, Vec<Duration>) = prefixes.into_iter().unzip();
        prompts.push(prompt);
        let mut encoded = self.encode(model, prompts).await?;
        let tokens = encoded.pop().expect("as many as were asked for")?;
        let in_common = |prefix: Result<Vec<u32>, Fault>| match prefix {
            Ok(prefix) => prefix.iter().zip(&tokens).take_while(|(a, b)| a == b).count(),
            Err(fault) => {
                tracing::warn!(
                    reason = fault.message,
                    "a prefix is not held: the template does not write it alone"
                );
                0
            }
        };
        let lengths: Vec<usize> = encoded.into_iter().map(in_common).collect();
        let now_ms = self.clock.unix_ms();
        let until = times.iter().map(|time| now_ms + time.as_millis() as u64);
        let prefixes = lengths.iter().copied().zip(until).collect();
        let tenant = tenant.map(Tenant::to_string).unwrap_or_default();
        let hold = HoldPrefixes { model: model.into(), tenant, tokens, prefixes };
        let held = self.kv.send(hold).await.map_err(gone)?;
        tracing::debug!(model, ?lengths, ?held, "marked prefixes");
        Ok(lengths)
    }

    /// The tokens of each prompt, or what is wrong with it.
    ///
    /// # Errors
    /// The model cannot be loaded.
    async fn encode(&self, model: &str, prompts: Vec<Prompt>) -> Result<Vec<Result<Vec<u32>, Fault>>, Fault> {
        let loaded = load(model, self).await?;
        let now_unix_s = (self.clock.unix_ms() / 1000) as i64;
        off_the_loop(self, move || {
            let tokens = |prompt: &Prompt| Ok(loaded.text.encode(prompt, now_unix_s)?.0);
            prompts.iter().map(tokens).collect()
        })
        .await
    }
}

/// What a model file is. It need not be one that the daemon serves, only one that it may read.
pub(crate) async fn inspect(target: InspectTarget, services: &Services) -> Result<String, Fault> {
    let _arriving = arrive(Class::Interactive, services)?;
    let (path, settings, template) = match target {
        InspectTarget::Model(name) => {
            let settings = services.settings(&name)?;
            (settings.path, settings.defaults, settings.template)
        }
        InspectTarget::File(path) if path.starts_with('/') => {
            (PathBuf::from(path), services.catalog.defaults().clone(), None)
        }
        InspectTarget::File(path) => {
            let message = format!("{path:?} is not an absolute path, which the daemon needs");
            return Err(fault(ErrorCode::Invalid, message));
        }
    };
    let look = move || inspect::inspect(&path, &settings, template.as_ref());
    let inspected = off_the_loop(services, look).await?;
    inspected.map_err(|error| {
        let code = match error {
            InspectError::NotFound(_) => ErrorCode::NotFound,
            InspectError::Gguf(_) => ErrorCode::Failed,
        };
        fault(code, error.to_string())
    })
}

/// A request with everything done that needs the model's text side.
struct Ready {
    prompt: Vec<u32>,
    speech: SpeechStyle,
    params: GenerationParams,
    max_tokens: usize,
    samplers: Vec<Box<dyn Generate>>,
}

async fn prepare(
    model: &str,
    (tenant, class): (&str, Class),
    prompt: Prompt,
    params: GenerationParams,
    services: &Services,
) -> Result<Ready, Objection> {
    let _arriving = arrive(class, services)?;
    let loaded = load(model, services).await?;
    let kept = match &prompt {
        Prompt::Continue { session, .. } => {
            let session = SessionName { tenant: tenant.to_owned(), id: session.to_string() };
            let tokens =
                services.kv.send(ContinueSession { session, model: model.into() }).await.map_err(gone)?;
            Some(tokens.map_err(session_fault)?)
        }
        _ => None,
    };
    let default_max_tokens = services.default_max_tokens;
    let now_unix_s = (services.clock.unix_ms() / 1000) as i64;
    off_the_loop(services, move || {
        encode(&loaded, kept.as_deref(), &prompt, now_unix_s, params, default_max_tokens)
    })
    .await?
}

/// `kept` are the tokens of the session that the prompt continues.
fn encode(
    loaded: &Loaded,
    kept: Option<&[u32]>,
    prompt: &Prompt,
    now_unix_s: i64,
    mut params: GenerationParams,
    default_max_tokens: usize,
) -> Result<Ready, Objection> {
    let invalid = |message| fault(ErrorCode::Invalid, message);
    let (prompt, speech) = match (kept, prompt) {
        (Some(kept), Prompt::Continue { text, parse_special, .. }) => {
            let text = loaded.text.tokenize(text, *parse_special, false).map_err(invalid)?;
            ([kept, &text].concat(), SpeechStyle::default())
        }
        _ => loaded.text.encode(prompt, now_unix_s)?,
    };
    let context = loaded.text.facts().context_tokens;
    check_length(prompt.len(), context)?;
    if params.max_tokens == Some(0) {
        return Err(Objection::to("max_tokens", "max_tokens is 0; at least 1 works".into()));
    }
    let n = params.n.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(Objection::to("n", format!("n is {n}, must be from 1 to {MAX_CHOICES}")));
    }
    // The limit that the sampler keeps is the one that memory is reserved for.
    let wanted = params.max_tokens.map_or(default_max_tokens, |tokens| tokens as usize);
    // It is the most that is wanted, so it gives way to the context, and to the memory where that ends first. What leaves no
    // room in memory is the scheduler's to refuse.
    let memory = (loaded.device_blocks as usize * BLOCK_TOKENS).saturating_sub(prompt.len());
    let room = if memory > 0 { memory.min(context - prompt.len()) } else { context - prompt.len() };
    let max_tokens = wanted.min(room);
    params.max_tokens = Some(max_tokens as u32);
    check_logprobs(&params, max_tokens, n).map_err(|message| Objection::to("logprobs", message))?;
    let samplers = (0..n).map(|choice| loaded.text.generation(&prompt, &params, choice));
    let samplers = samplers.collect::<Result<_, _>>()?;
    Ok(Ready { prompt, speech, params, max_tokens, samplers })
}

/// # Errors
/// Log probabilities that the job's log could not keep.
fn check_logprobs(params: &GenerationParams, max_tokens: usize, n: u32) -> Result<(), String> {
    let Some(count) = params.logprobs else { return Ok(()) };
    let entries = (u64::from(count) + 1) * max_tokens as u64 * u64::from(n);
    if entries > MAX_LOGPROBS_PER_JOB {
        return Err(format!(
            "logprobs {count} for {max_tokens} tokens of {n} answers are {entries} log probabilities; at most \
             {MAX_LOGPROBS_PER_JOB} are kept for a job: lower logprobs, max_tokens or n"
        ));
    }
    Ok(())
}

/// Takes a place among the requests that are not in the queue yet.
pub(super) fn arrive(class: Class, services: &Services) -> Result<Place<'_>, Fault> {
    services.arriving.take(class).ok_or_else(|| {
        let most = if class == Class::Batch { MAX_ARRIVING_BATCH } else { MAX_ARRIVING };
        let message = format!("{most} requests wait for a model or for their tokens");
        // About when one of them will be through.
        let retry_after = services.arrival_time().clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end());
        fault(ErrorCode::Refused { retry_after_ms: retry_after.as_millis() as u64 }, message)
    })
}

pub(super) async fn load(model: &str, services: &Services) -> Result<Loaded, Fault> {
    let mut watch = services.want(model).await?;
    let state = watch.wait_for(|state| !matches!(state, LoadState::Loading(_))).await;
    match state.map(|state| state.clone()) {
        Ok(LoadState::Ready(loaded)) => Ok(loaded),
        Ok(LoadState::Failed(fault)) => Err(fault),
        Ok(LoadState::Loading(_)) | Err(_) => Err(fault(ErrorCode::Failed, "the load was given up")),
    }
}

fn check_length(tokens: usize, context: usize) -> Result<(), Fault> {
    match tokens {
        0 => Err(fault(ErrorCode::Invalid, "the prompt is empty; give at least one token")),
        tokens if tokens >= context => Err(too_long(tokens, context)),
        _ => Ok(()),
    }
}

/// Runs what takes a core for a while on the blocking pool, a few at a time. The work keeps its place until it is done,
/// whether or not anybody still waits for it: a client that asks and leaves cannot start more.
pub(crate) async fn off_the_loop<T: Send + 'static>(
    services: &Services,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let place = services
        .encoding
        .clone()
        .acquire_owned()
        .await
        .map_err(|_| fault(ErrorCode::Draining, "the daemon is stopping"))?;
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    })
    .await;
    done.map_err(|error| fault(ErrorCode::Failed, format!("work off the event loop failed: {error}")))
}

/// A request that never became a job counts as refused.
pub(super) fn refuse<E>(services: &Services, why: E) -> E {
    services.metrics.request(Outcome::Refused);
    why
}

/// What a request takes while it waits, about.
fn request_bytes(prompt: &Prompt, params: &GenerationParams) -> usize {
    let prompt = match prompt {
        Prompt::Text { text, .. } => text.len(),
        Prompt::Chat { messages_json, tools_json, template, continue_last: _ } => {
            let template = template.as_ref().map_or(0, |template| match template {
                Template::Named(text) | Template::Source(text) => text.len(),
            });
            messages_json.len() + tools_json.as_ref().map_or(0, String::len) + template
        }
        Prompt::Tokens(tokens) => tokens.0.len() * size_of::<u32>(),
        Prompt::Continue { text, .. } => text.len(),
    };
    let breakers = params.sampling.dry_sequence_breakers.iter().flatten();
    let texts: usize = params.stop.iter().chain(breakers).map(String::len).sum();
    let biases = params.sampling.logit_bias.len() * size_of::<zllm_wire::LogitBias>();
    prompt + texts + biases + params.stop_tokens.len() * size_of::<u32>()
}
