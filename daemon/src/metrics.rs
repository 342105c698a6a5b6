//! What Prometheus scrapes. Counters and histograms are written where things happen; gauges are set from the actors'
//! snapshots at each scrape.
//!
//! Invariant: label sets are fixed and small. No model, job, session or client is ever a label; a device is, and they are
//! the configuration's.

mod kv;
mod recent;

use crate::device::DeviceSnapshot;
use crate::kv_store::KvSnapshot;
use crate::scheduler::core::{Load, Measure};
use crate::scheduler::plan::StepPlan;
use kv::{KvMetrics, TIERS, labelled};
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder, exponential_buckets,
};
use recent::{Latency, Recent};
use std::collections::BTreeSet;
use std::time::Duration;
use zllm_wire::FinishReason;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
    Cancelled,
    Refused,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Done, Self::Failed, Self::Cancelled, Self::Refused];

    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
        }
    }
}

impl From<FinishReason> for Outcome {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop | FinishReason::Length => Self::Done,
            FinishReason::Cancelled => Self::Cancelled,
        }
    }
}

const TOKEN_SOURCES: [&str; 3] = ["computed", "cached", "generated"];

/// All metrics of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    jobs: IntGaugeVec,
    queue_wait: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    step: HistogramVec,
    kv: KvMetrics,
    device_memory: IntGaugeVec,
    models_loaded: IntGauge,
    sessions: IntGauge,
    connections: IntGauge,
    parked: IntCounter,
    recent: Recent,
}

/// Totals since the start, for `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) refused: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generated_tokens: u64,
}

impl Metrics {
    /// Registers everything. Each label value exists from the start, so that a rate over it never misses its first event.
    pub(crate) fn new(started_unix_seconds: u64) -> Self {
        let registry = Registry::new();
        let metrics = Self {
            requests: counters(&registry, "zllm_requests_total", "Requests by outcome.", "outcome"),
            tokens: counters(
                &registry,
                "zllm_tokens_total",
                "Tokens by source: prompt tokens computed, prompt tokens found in the KV cache, tokens generated.",
                "source",
            ),
            cached_tokens: counters(
                &registry,
                "zllm_cached_tokens_total",
                "Prompt tokens found in the KV cache, by the tier that they came from.",
                "tier",
            ),
            jobs: gauges(
                &registry,
                "zllm_jobs",
                "Jobs that wait (queued), are computed (running), gave way (parked) or are held (held).",
                &["state"],
            ),
            queue_wait: histogram(
                &registry,
                "zllm_queue_wait_seconds",
                "From a request's arrival to the start of its prefill.",
                0.001,
            ),
            first_token: histogram(
                &registry,
                "zllm_first_token_seconds",
                "From a request's arrival to its first token.",
                0.005,
            ),
            inter_token: histogram(
                &registry,
                "zllm_inter_token_seconds",
                "From one token of a request to its next.",
                0.0005,
            ),
            step: step_histogram(&registry),
            kv: KvMetrics::new(&registry),
            device_memory: gauges(
                &registry,
                "zllm_device_memory_bytes",
                "Memory on the devices by use.",
                &["device", "use"],
            ),
            models_loaded: gauge(&registry, "zllm_models_loaded", "Models that can answer now."),
            sessions: gauge(&registry, "zllm_sessions", "Sessions that are remembered."),
            connections: gauge(&registry, "zllm_connections", "Open connections of the socket protocol."),
            parked: counter(
                &registry,
                "zllm_parked_total",
                "Running sequences that gave way to more urgent ones.",
            ),
            recent: Recent::new(),
            registry,
        };
        metrics.show_zeros();
        metrics.register_constants(started_unix_seconds);
        metrics
    }

    /// Counters that nothing has counted yet are there from the start, so that a rate has something to begin with.
    fn show_zeros(&self) {
        for outcome in Outcome::ALL {
            self.requests.with_label_values(&[outcome.label()]);
        }
        for source in TOKEN_SOURCES {
            self.tokens.with_label_values(&[source]);
        }
        for tier in TIERS {
            self.cached_tokens.with_label_values(&[tier]);
        }
    }

    fn register_constants(&self, started_unix_seconds: u64) {
        let options = Opts::new("zllm_build_info", "The running build; always 1.")
            .const_label("version", env!("CARGO_PKG_VERSION"))
            .const_label("arch", std::env::consts::ARCH);
        let build = Gauge::with_opts(options).expect("a valid name");
        build.set(1.0);
        let start = Gauge::new("zllm_start_time_seconds", "When the daemon started, in Unix time.");
        let start = start.expect("a valid name");
        start.set(started_unix_seconds as f64);
        register(&self.registry, build);
        register(&self.registry, start);
    }

    pub(crate) fn request(&self, outcome: Outcome) {
        self.requests.with_label_values(&[outcome.label()]).inc();
    }

    /// Notes a measurement; `now` is the time since the start.
    pub(crate) fn measure(&self, measure: Measure, now: Duration) {
        let tokens = |source, count: usize| self.tokens.with_label_values(&[source]).inc_by(count as u64);
        match measure {
            Measure::QueueWait(time) => self.queue_wait.observe(time.as_secs_f64()),
            Measure::FirstToken(time) => {
                self.first_token.observe(time.as_secs_f64());
                self.recent.latency(Latency::FirstToken, time, now);
            }
            Measure::InterToken(time) => {
                self.inter_token.observe(time.as_secs_f64());
                self.recent.latency(Latency::InterToken, time, now);
            }
            Measure::Prefilled(count) => {
                tokens("computed", count);
                self.recent.tokens(count, 0, now);
            }
            Measure::FromCache(cached) => {
                tokens("cached", cached.total() as usize);
                for (tier, count) in labelled(cached) {
                    self.cached_tokens.with_label_values(&[tier]).inc_by(count);
                }
            }
            Measure::Generated => {
                tokens("generated", 1);
                self.recent.tokens(0, 1, now);
            }
            Measure::Parked => self.parked.inc(),
        }
    }

    pub(crate) fn step(&self, plan: &StepPlan, took: Duration, now: Duration) {
        let kind = if plan.prefill_tokens() > 0 { "prefill" } else { "decode" };
        self.step.with_label_values(&[kind]).observe(took.as_secs_f64());
        self.recent.step(plan.rows.len(), now);
    }

    /// How fast it was lately; `now` is the time since the start.
    pub(crate) fn speed(&self, now: Duration) -> zllm_wire::Speed {
        self.recent.speed(now)
    }

    pub(crate) fn connections(&self) -> &IntGauge {
        &self.connections
    }

    pub(crate) fn totals(&self) -> Totals {
        let requests = |outcome: Outcome| self.requests.with_label_values(&[outcome.label()]).get();
        let tokens = |source| self.tokens.with_label_values(&[source]).get();
        Totals {
            done: requests(Outcome::Done),
            failed: requests(Outcome::Failed),
            cancelled: requests(Outcome::Cancelled),
            refused: requests(Outcome::Refused),
            prompt_tokens: tokens("computed"),
            cached_tokens: tokens("cached"),
            generated_tokens: tokens("generated"),
        }
    }

    /// The whole page, with the gauges as the snapshots say.
    pub(crate) fn page(&self, load: Load, kv: &KvSnapshot, devices: &[DeviceSnapshot]) -> String {
        self.jobs.with_label_values(&["queued"]).set(load.queued_jobs as i64);
        self.jobs.with_label_values(&["running"]).set(load.running_jobs as i64);
        self.jobs.with_label_values(&["parked"]).set(load.parked_jobs as i64);
        self.jobs.with_label_values(&["held"]).set(load.held_jobs as i64);
        self.kv.set(kv);
        for DeviceSnapshot { description, loaded, .. } in devices {
            let set = |of, bytes: u64| {
                self.device_memory.with_label_values(&[description.name.as_str(), of]).set(bytes as i64);
            };
            set("weights", loaded.values().map(|model| model.weight_bytes).sum());
            set("kv", loaded.values().map(|model| model.kv_bytes).sum());
        }
        let loaded: BTreeSet<_> = devices.iter().flat_map(|device| device.loaded.keys()).collect();
        self.models_loaded.set(loaded.len() as i64);
        self.sessions.set(kv.sessions as i64);
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page).expect("a Vec takes every byte");
        String::from_utf8(page).expect("the encoder writes text")
    }
}

fn register(registry: &Registry, collector: impl prometheus::core::Collector + 'static) {
    registry.register(Box::new(collector)).expect("each name is registered once");
}

fn counters(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    let counters = IntCounterVec::new(Opts::new(name, help), &[label]).expect("a valid name");
    register(registry, counters.clone());
    counters
}

fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    let counter = IntCounter::new(name, help).expect("a valid name");
    register(registry, counter.clone());
    counter
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    let gauges = IntGaugeVec::new(Opts::new(name, help), labels).expect("a valid name");
    register(registry, gauges.clone());
    gauges
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    let gauge = IntGauge::new(name, help).expect("a valid name");
    register(registry, gauge.clone());
    gauge
}

/// Sixteen buckets that double from `first_seconds` on.
fn buckets(first_seconds: f64) -> Vec<f64> {
    exponential_buckets(first_seconds, 2.0, 16).expect("valid buckets")
}

fn histogram(registry: &Registry, name: &str, help: &str, first_seconds: f64) -> Histogram {
    let options = HistogramOpts::new(name, help).buckets(buckets(first_seconds));
    let histogram = Histogram::with_opts(options).expect("a valid name");
    register(registry, histogram.clone());
    histogram
}

fn step_histogram(registry: &Registry) -> HistogramVec {
    let help = "Time of one step on its devices, by whether a prefill chunk was in it.";
    let options = HistogramOpts::new("zllm_step_seconds", help).buckets(buckets(0.0005));
    let step = HistogramVec::new(options, &["kind"]).expect("a valid name");
    for kind in ["decode", "prefill"] {
        step.with_label_values(&[kind]);
    }
    register(registry, step.clone());
    step
}
