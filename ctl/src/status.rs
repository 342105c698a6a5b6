//! `status`, `stop`: the daemon itself.

use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::units::{self, Align, Table};
use crate::{models, output};
use serde_json::json;
use zllm_wire::{
    Answer, BlockUsage, DeviceInfo, KvStatus, Op, Percentiles, Speed, SsdState, Status, Tier, TierBlocks,
};

/// `status`.
pub(crate) fn status(context: &Context) -> Result<(), Failure> {
    match context.ask(Op::Status)? {
        Answer::Status(status) if context.json => output::print_json(&status),
        Answer::Status(status) => output::print(&output::foreign(&page(&status))),
        other => Err(unexpected(&other)),
    }
}

/// `stop`.
pub(crate) fn stop(context: &Context, now: bool, no_wait: bool) -> Result<(), Failure> {
    let mut connection = context.connect()?;
    connection.send(Op::Stop { drain: !now })?;
    match connection.answer()? {
        Answer::Done => {}
        other => return Err(unexpected(&other)),
    }
    let state = if no_wait {
        "stopping"
    } else {
        // The daemon keeps this connection to its end.
        connection.wait_for_end()?;
        "stopped"
    };
    if context.json {
        output::print_json(&json!({ "daemon": state }))
    } else {
        output::print(&format!("{state}\n"))
    }
}

fn page(status: &Status) -> String {
    let draining = if status.draining { ", draining" } else { "" };
    let uptime = units::duration_ms(status.uptime_ms as f64);
    let mut rows = vec![
        ("zllmd", format!("{}, process {}, up {uptime}{draining}", status.version, status.pid)),
        ("jobs", jobs(status)),
        (
            "ended",
            format!(
                "{} done, {} failed, {} cancelled, {} refused",
                status.jobs_done, status.jobs_failed, status.jobs_cancelled, status.jobs_refused
            ),
        ),
        (
            "tokens",
            format!(
                "{} computed from prompts, {} found in cache, {} generated",
                status.prompt_tokens, status.cached_tokens, status.generated_tokens
            ),
        ),
        (
            "clients",
            format!(
                "{}, {}",
                units::count(status.connections.into(), "connection"),
                units::count(status.sessions.into(), "session")
            ),
        ),
    ];
    rows.extend(speed_rows(&status.speed));
    rows.extend(
        status.jobs_fault.as_ref().map(|why| ("durable", format!("no, a restart loses all jobs: {why}"))),
    );
    rows.extend(kv_rows(&status.kv));
    let mut page = units::pairs(&rows);
    let tables = [models::table(&status.models), device_table(&status.devices), block_table(&status.blocks)];
    // A table of one line is a header with nothing under it.
    for table in tables.iter().filter(|table| table.lines().count() > 1) {
        page.push('\n');
        page.push_str(table);
    }
    page
}

fn jobs(status: &Status) -> String {
    let (running, queued, capacity) = (status.running_jobs, status.queued_jobs, status.queue_capacity);
    let mut jobs = format!("{running} running, {queued} of at most {capacity} queued");
    for (count, what) in [(status.held_jobs, "held"), (status.parked_jobs, "parked")] {
        if count > 0 {
            jobs.push_str(&format!(", {count} {what}"));
        }
    }
    jobs
}

/// Over the last minute; nothing where nothing was measured.
fn speed_rows(speed: &Speed) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if speed.decode_tokens_per_s > 0.0 || speed.prefill_tokens_per_s > 0.0 {
        let (decode, prefill) = (speed.decode_tokens_per_s, speed.prefill_tokens_per_s);
        let told = format!(
            "{decode:.1} tokens/s generated, {:.1} a step, {prefill:.0} of prompts",
            speed.batch_rows
        );
        rows.push(("speed", told));
    }
    for (name, times) in [("first token", &speed.first_token), ("next token", &speed.inter_token)] {
        if times.count > 0 {
            let Percentiles { p50_ms, p90_ms, p99_ms, .. } = times;
            rows.push((name, format!("after {p50_ms:.1} ms, p90 {p90_ms:.1} ms, p99 {p99_ms:.1} ms")));
        }
    }
    rows
}

fn kv_rows(kv: &KvStatus) -> Vec<(&'static str, String)> {
    let ssd = match &kv.ssd {
        SsdState::Off => "off".to_owned(),
        SsdState::Down { reason } => format!("down: {reason}"),
        SsdState::Ready => format!(
            "{} of {}, {}, {} to be written, in {}",
            units::bytes(kv.file_bytes),
            units::bytes(kv.budget_bytes),
            units::count(kv.stored_blocks, "block"),
            units::bytes(kv.unsaved_bytes),
            kv.path.as_deref().unwrap_or("a place that is not told")
        ),
    };
    let ram = format!("{} of {}", units::bytes(kv.ram_used_bytes), units::bytes(kv.ram_budget_bytes));
    let mut rows = vec![("KV in RAM", ram), ("KV on SSD", ssd)];
    let read = kv.read_bytes_per_s.map(|rate| format!("{}/s read from SSD", units::bytes(rate as u64)));
    let compute = kv.compute_tokens_per_s.map(|rate| format!("{rate:.0} tokens/s computed"));
    let rates: Vec<String> = read.into_iter().chain(compute).collect();
    if !rates.is_empty() {
        rows.push(("KV rates", rates.join(", ")));
    }
    let TierBlocks { device, ram, ssd } = kv.evicted_blocks;
    if device + ram + ssd > 0 {
        rows.push(("evicted", format!("blocks {}", units::by_place([device, ram, ssd]))));
    }
    if kv.lost_unsaved_blocks > 0 {
        rows.push(("lost", format!("{}, evicted unsaved", units::count(kv.lost_unsaved_blocks, "block"))));
    }
    rows
}

fn device_table(devices: &[DeviceInfo]) -> String {
    let mut table = Table::new([
        ("DEVICE", Align::Left),
        ("USED", Align::Right),
        ("MEMORY", Align::Right),
        ("BUSY", Align::Right),
        ("WHAT", Align::Left),
    ]);
    for device in devices {
        table.row([
            device.name.clone(),
            units::bytes(device.used_bytes),
            units::bytes(device.total_bytes),
            format!("{:.0} %", device.busy * 100.0),
            device.description.clone(),
        ]);
    }
    table.render()
}

fn block_table(blocks: &[BlockUsage]) -> String {
    let mut table = Table::new([
        ("KV BLOCKS OF", Align::Left),
        ("TIER", Align::Left),
        ("BLOCK", Align::Right),
        ("TOTAL", Align::Right),
        ("USED", Align::Right),
        ("CACHED", Align::Right),
    ]);
    for row in blocks {
        let tier = match row.tier {
            Tier::Device => "device",
            Tier::Ram => "RAM",
            Tier::Ssd => "SSD",
        };
        table.row([
            row.model.clone(),
            tier.into(),
            units::bytes(row.block_bytes),
            row.total.to_string(),
            row.used.to_string(),
            row.cached.to_string(),
        ]);
    }
    table.render()
}
