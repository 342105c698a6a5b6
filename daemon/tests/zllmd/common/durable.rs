//! Durable jobs of every kind, what a daemon that nobody disturbs answers to them, and readers that come back.

use super::{Builder, Client, Settings, greedy};
use zllm_wire::{
    Answer, BatchId, ChoiceEnd, Class, ErrorCode, Event, FinishReason, GenerationParams, IdempotencyKey,
    JobId, LogitBias, Op, Submit,
};

/// A round of jobs: an interactive one that runs long, normal ones that wait behind it, and a batch.
pub(crate) const NORMAL: usize = 8;
pub(crate) const BATCH: usize = 50;
pub(crate) const JOBS: usize = 1 + NORMAL + BATCH;

const PROMPTS: [&str; 6] = [
    "The capital of France is",
    "Once upon a time there was a",
    "Water boils at one hundred degrees because",
    "def fibonacci(n):",
    "The history of the steam engine begins with",
    "A recipe for bread: take flour, water and",
];

/// Every way to draw whose state has to be found again, by turns.
fn vary(index: usize, params: &mut GenerationParams) {
    let sampling = &mut params.sampling;
    sampling.temperature = Some(0.9);
    sampling.seed = Some(100 + index as u64);
    match index % 12 {
        0 => sampling.temperature = Some(0.0),
        1 => sampling.top_k = Some(40),
        2 => (sampling.top_p, sampling.min_p) = (Some(0.9), Some(0.02)),
        3 => {
            (sampling.repeat_penalty, sampling.repeat_last_n) = (Some(1.2), Some(32));
            (sampling.frequency_penalty, sampling.presence_penalty) = (Some(0.3), Some(0.2));
        }
        4 => (sampling.mirostat, sampling.mirostat_tau) = (Some(2), Some(4.0)),
        5 => params.n = Some(2),
        6 => params.logprobs = Some(3),
        7 => params.stop = vec![" the".into(), " and".into()],
        8 => (sampling.dry_multiplier, sampling.dry_allowed_length) = (Some(0.8), Some(2)),
        9 => (sampling.dynatemp_range, sampling.xtc_probability) = (Some(0.3), Some(0.5)),
        10 => {
            sampling.logit_bias = vec![LogitBias { token: 28, bias: -4.0 }];
            (params.min_tokens, params.stop) = (Some(6), vec!["\n".into()]);
        }
        // Several answers, each with a state of its own, with log probabilities and text that is held back.
        _ => {
            (params.n, params.logprobs, sampling.mirostat) = (Some(2), Some(1), Some(2));
            params.stop = vec!["never said, but begun with a blank".into(), " of the".into()];
        }
    }
}

/// Job `index` of a round; its tokens are the same in every round.
pub(crate) fn request(round: usize, index: usize) -> Submit {
    let (class, tokens) = match index {
        0 => (Class::Interactive, 160),
        1..=NORMAL => (Class::Normal, 40),
        _ => (Class::Batch, 12 + index as u32 % 9),
    };
    let mut request = greedy(&format!("{} {index}", PROMPTS[index % PROMPTS.len()]), tokens);
    request.params.ignore_eos = !index.is_multiple_of(3);
    vary(index, &mut request.params);
    let name = format!("{round}-{index}");
    Submit {
        detached: true,
        stream: false,
        label: Some(name.clone()),
        class,
        key: Some(IdempotencyKey::new(name).expect("a key")),
        batch: (class == Class::Batch).then(|| batch(round)),
        ..request
    }
}

/// The batch of a round.
pub(crate) fn batch(round: usize) -> BatchId {
    BatchId::new(format!("batch-{round}")).expect("an id")
}

/// How a job ended, without the times that it took and without where the events of its answers stand among each other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// Of each answer, its text events: text, tokens, log probabilities.
    texts: Vec<Vec<Event>>,
    reason: FinishReason,
    ends: Vec<ChoiceEnd>,
    prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
}

impl Outcome {
    /// Of a whole log, whose only terminal event is its last, and which has every offset once.
    pub(crate) fn of(job: &str, log: &[(u64, Event)]) -> Self {
        let offsets: Vec<u64> = log.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (0..log.len() as u64).collect::<Vec<_>>(), "{job}: offsets");
        let is_end = |event: &Event| matches!(event, Event::Finished { .. } | Event::Failed { .. });
        let ends = log.iter().filter(|(_, event)| is_end(event)).count();
        assert_eq!(ends, 1, "{job} ends once: {log:?}");
        let Some((_, Event::Finished { reason, choices, usage })) = log.last() else {
            panic!("{job} has not finished: {:?}", log.last())
        };
        let mut texts = vec![Vec::new(); choices.len()];
        for (_, event) in log {
            if let Event::Text { choice, .. } = event {
                texts[*choice as usize].push(event.clone());
            }
        }
        Self {
            texts,
            reason: *reason,
            ends: choices.clone(),
            prompt_tokens: usage.prompt_tokens,
            generated_tokens: usage.generated_tokens,
        }
    }

    /// That it is as expected; says where it first is not.
    pub(crate) fn compare(&self, expected: &Self, job: &str) {
        for (choice, (texts, wanted)) in self.texts.iter().zip(&expected.texts).enumerate() {
            let same = texts.iter().zip(wanted).take_while(|(text, wanted)| text == wanted).count();
            let differ = (texts.get(same), wanted.get(same));
            assert_eq!(differ, (None, None), "{job}: after {same} text events of answer {choice}");
        }
        assert_eq!(self, expected, "{job}");
    }
}

/// What each job of a round is answered by a daemon that is left alone.
pub(crate) fn undisturbed(change: impl FnOnce(&mut Settings)) -> Vec<Outcome> {
    let daemon = Builder::new().with(change).start();
    let mut client = daemon.connect();
    let submit =
        |index| Submit { detached: false, stream: true, key: None, batch: None, ..request(0, index) };
    let ids: Vec<u64> = (0..JOBS).map(|index| client.submit(submit(index)).0).collect();
    let logs = ids.into_iter().map(|id| client.finish(id).events);
    logs.enumerate().map(|(index, log)| Outcome::of(&format!("job {index}, undisturbed"), &log)).collect()
}

/// A reader of one job's log that comes back after each end of the daemon and reads on.
pub(crate) struct Reader {
    pub(crate) index: usize,
    pub(crate) log: Vec<(u64, Event)>,
    pub(crate) has_ended: bool,
}

impl Reader {
    pub(crate) fn new(index: usize) -> Self {
        Self { index, log: Vec::new(), has_ended: false }
    }

    /// Reads on until the log ends or the daemon is gone.
    pub(crate) fn read_on(&mut self, client: &mut Client, job: &JobId) {
        let from = self.log.len() as u64;
        let Some(id) = client.try_send(Op::Attach { job: job.clone(), from }) else { return };
        while let Some(answer) = client.try_answer(id) {
            match answer {
                Answer::Event { offset, event } => self.log.push((offset, event)),
                Answer::Done => {
                    let last = self.log.last().map(|(_, event)| event);
                    let is_over = matches!(last, Some(Event::Finished { .. } | Event::Failed { .. }));
                    assert!(is_over, "job {}: its log ends with {last:?}", self.index);
                    self.has_ended = true;
                    return;
                }
                Answer::Error(fault) if fault.code == ErrorCode::Draining => return,
                other => panic!("job {}: no event but {other:?}", self.index),
            }
        }
    }
}
