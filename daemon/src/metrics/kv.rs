//! What the KV store's snapshot becomes at each scrape.

use super::{counter, counters, gauge, gauges, register};
use crate::kv_store::{KvSnapshot, ModelFigures, SsdState, TierFigures};
use prometheus::{Counter, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use zllm_state::ByTier;

pub(super) const TIERS: [&str; 3] = ["device", "ram", "ssd"];
const SSD_STATES: [&str; 3] = ["off", "ready", "down"];

/// The metrics of blocks and where they are.
#[derive(Debug)]
pub(super) struct KvMetrics {
    blocks: IntGaugeVec,
    bytes: IntGaugeVec,
    budget: IntGaugeVec,
    file: IntGauge,
    unsaved: IntGauge,
    ssd: IntGaugeVec,
    evicted: IntCounterVec,
    lost_unsaved: IntCounter,
    written_blocks: IntCounter,
    written_bytes: IntCounter,
    restored_blocks: IntCounter,
    restored_bytes: IntCounter,
    restore_seconds: Counter,
    unreadable: IntCounter,
}

/// A total of the snapshot, which never falls.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// What is counted by tier, with the tiers' labels.
pub(super) fn labelled(ByTier { device, ram, ssd }: ByTier) -> impl Iterator<Item = (&'static str, u64)> {
    TIERS.into_iter().zip([device, ram, ssd])
}

impl KvMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let of_tier = &["tier", "state"];
        let count = |name, help| counter(registry, name, help);
        let restore_seconds = Counter::new(
            "zllm_kv_restore_seconds_total",
            "Time from the decision to read blocks to their use.",
        );
        let restore_seconds = restore_seconds.expect("a valid name");
        register(registry, restore_seconds.clone());
        let evicted = counters(
            registry,
            "zllm_kv_evicted_blocks_total",
            "KV blocks that lost their copy on a tier to make room.",
            "tier",
        );
        for tier in TIERS {
            evicted.with_label_values(&[tier]);
        }
        Self {
            blocks: gauges(registry, "zllm_kv_blocks", "KV blocks by tier and state.", of_tier),
            bytes: gauges(registry, "zllm_kv_bytes", "Bytes of KV blocks by tier and state.", of_tier),
            budget: gauges(registry, "zllm_kv_budget_bytes", "Bytes that a tier may take.", &["tier"]),
            file: gauge(registry, "zllm_kv_file_bytes", "What the KV file takes on disk."),
            unsaved: gauge(registry, "zllm_kv_unsaved_bytes", "KV that waits to be written to SSD."),
            ssd: gauges(
                registry,
                "zllm_kv_ssd",
                "State of the tier on SSD; 1 for the one it is in.",
                &["state"],
            ),
            evicted,
            lost_unsaved: count(
                "zllm_kv_lost_unsaved_blocks_total",
                "KV blocks that were to be written to SSD and were evicted before.",
            ),
            written_blocks: count("zllm_kv_written_blocks_total", "KV blocks written to SSD."),
            written_bytes: count("zllm_kv_written_bytes_total", "Bytes of KV written to SSD."),
            restored_blocks: count("zllm_kv_restored_blocks_total", "KV blocks read back from SSD."),
            restored_bytes: count("zllm_kv_restored_bytes_total", "Bytes of KV read back from SSD."),
            restore_seconds,
            unreadable: count(
                "zllm_kv_unreadable_blocks_total",
                "KV blocks on SSD that could not be read, or were not what was written.",
            ),
        }
    }

    /// Everything as the snapshot says.
    pub(super) fn set(&self, kv: &KvSnapshot) {
        self.set_tier("device", kv, |model| model.device);
        self.set_tier("ram", kv, |model| model.ram);
        let ssd = &kv.ssd;
        let free = ssd.budget_bytes.saturating_sub(ssd.file_bytes);
        self.blocks.with_label_values(&["ssd", "cached"]).set(ssd.stored_blocks as i64);
        self.bytes.with_label_values(&["ssd", "cached"]).set(ssd.stored_bytes as i64);
        self.bytes.with_label_values(&["ssd", "free"]).set(free as i64);
        self.budget.with_label_values(&["ssd"]).set(ssd.budget_bytes as i64);
        self.file.set(ssd.file_bytes as i64);
        self.unsaved.set(ssd.unsaved_bytes as i64);
        let state = match ssd.state {
            SsdState::Off => "off",
            SsdState::Ready => "ready",
            SsdState::Down(_) => "down",
        };
        for of in SSD_STATES {
            self.ssd.with_label_values(&[of]).set(i64::from(of == state));
        }
        let totals = &kv.totals;
        for (tier, evicted) in labelled(totals.evicted) {
            raise(&self.evicted.with_label_values(&[tier]), evicted);
        }
        raise(&self.lost_unsaved, totals.lost_unsaved);
        raise(&self.written_blocks, totals.written_blocks);
        raise(&self.written_bytes, totals.written_bytes);
        raise(&self.restored_blocks, totals.restored_blocks);
        raise(&self.restored_bytes, totals.restored_bytes);
        let more = totals.restore_time.as_secs_f64() - self.restore_seconds.get();
        self.restore_seconds.inc_by(more.max(0.0));
        raise(&self.unreadable, totals.unreadable);
    }

    /// A tier in memory, all models together.
    fn set_tier(&self, tier: &str, kv: &KvSnapshot, figures: impl Fn(&ModelFigures) -> TierFigures) {
        let sum = |count: fn(TierFigures) -> u32| {
            let of = |model: &ModelFigures| u64::from(count(figures(model)));
            let blocks: u64 = kv.models.values().map(of).sum();
            let bytes: u64 = kv.models.values().map(|model| of(model) * model.block_bytes).sum();
            (blocks as i64, bytes as i64)
        };
        let sums = [
            ("used", sum(|tier| tier.used)),
            ("cached", sum(|tier| tier.cached)),
            ("free", sum(|tier| tier.free)),
        ];
        for (state, (blocks, bytes)) in sums {
            self.blocks.with_label_values(&[tier, state]).set(blocks);
            self.bytes.with_label_values(&[tier, state]).set(bytes);
        }
        self.budget.with_label_values(&[tier]).set(sum(TierFigures::total).1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_store::{KvTotals, SsdFigures};
    use prometheus::{Encoder, TextEncoder};
    use std::time::Duration;

    fn page(registry: &Registry) -> String {
        let mut page = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut page).expect("a Vec takes every byte");
        String::from_utf8(page).expect("text")
    }

    fn snapshot(restored_blocks: u64, restore_ms: u64) -> KvSnapshot {
        let small = ModelFigures {
            block_bytes: 10,
            device: TierFigures { used: 1, cached: 2, free: 3 },
            ram: TierFigures { used: 0, cached: 4, free: 5 },
            compute_tokens_per_s: None,
        };
        let large = ModelFigures { block_bytes: 1000, ..small };
        KvSnapshot {
            models: [("small".into(), small), ("large".into(), large)].into(),
            ssd: SsdFigures {
                state: SsdState::Down("no such folder".into()),
                budget_bytes: 5000,
                file_bytes: 4000,
                stored_blocks: 7,
                stored_bytes: 3500,
                unsaved_bytes: 20,
                ..SsdFigures::default()
            },
            sessions: 1,
            totals: KvTotals {
                evicted: ByTier { device: 1, ram: 2, ssd: 3 },
                restored_blocks,
                restore_time: Duration::from_millis(restore_ms),
                ..KvTotals::default()
            },
        }
    }

    #[test]
    fn every_tier_is_told_over_all_models() {
        let registry = Registry::new();
        let metrics = KvMetrics::new(&registry);
        metrics.set(&snapshot(5, 250));
        let page = page(&registry);
        for line in [
            "zllm_kv_blocks{state=\"cached\",tier=\"ram\"} 8",
            "zllm_kv_bytes{state=\"free\",tier=\"device\"} 3030",
            "zllm_kv_budget_bytes{tier=\"ram\"} 9090",
            "zllm_kv_blocks{state=\"cached\",tier=\"ssd\"} 7",
            "zllm_kv_bytes{state=\"free\",tier=\"ssd\"} 1000",
            "zllm_kv_budget_bytes{tier=\"ssd\"} 5000",
            "zllm_kv_file_bytes 4000",
            "zllm_kv_unsaved_bytes 20",
            "zllm_kv_ssd{state=\"down\"} 1",
            "zllm_kv_ssd{state=\"off\"} 0",
            "zllm_kv_evicted_blocks_total{tier=\"ssd\"} 3",
            "zllm_kv_restore_seconds_total 0.25",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn totals_go_on_from_the_last_scrape_and_never_fall() {
        let registry = Registry::new();
        let metrics = KvMetrics::new(&registry);
        for (total, restored) in [(5, 5), (5, 5), (9, 9), (0, 9)] {
            metrics.set(&snapshot(total, total));
            assert_eq!(metrics.restored_blocks.get(), restored);
            assert!((metrics.restore_seconds.get() - restored as f64 / 1000.0).abs() < 1e-9);
        }
    }
}
