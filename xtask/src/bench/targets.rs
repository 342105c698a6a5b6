//! What ours is to reach beside llama.cpp, and whether it did.

use anyhow::{Result, bail};

use super::result::Row;
use crate::figures::or_dash;

/// The tests that have a target of their own.
pub(super) const TESTS: [&str; 3] = ["prefill 512", "decode 128", "8 sessions"];
/// At least, ours over llama.cpp's, in the order of [`TESTS`].
const RATIOS: [(&str, [f64; 3]); 3] = [
    ("smollm2-135m", [4.4, 2.4, 4.5]),
    ("gemma3-270m", [2.2, 1.85, 3.2]),
    ("qwen2.5-coder-0.5b", [2.5, 1.85, 3.5]),
];
/// Whose decode may have this part of the memory's roof instead of its ratio.
const BOUND_BY_MEMORY: [&str; 2] = ["gemma3-270m", "qwen2.5-coder-0.5b"];
const ROOF_SHARE: f64 = 0.9;
/// Whose ratios may not fall with the depth, whose load time counts, and who gets the long prompt.
const DEEP: &str = "qwen2.5-coder-0.5b";
const LOAD_S: f64 = 0.5;
/// Of llama.cpp's time for a prompt of 16,384 tokens, at most; and of its rate behind it, at least.
const LONG_TIME: f64 = 0.27;
const LONG_DECODE: f64 = 1.5;

/// One of them.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    what: String,
    /// `None`: it was not measured.
    found: Option<String>,
    wanted: String,
    reached: bool,
}

impl Target {
    fn at_least(what: String, found: Option<f64>, wanted: f64) -> Self {
        let reached = found.is_some_and(|found| found >= wanted);
        Self {
            what,
            found: found.map(|f| format!("{f:.2}")),
            wanted: format!("at least {wanted:.2}"),
            reached,
        }
    }

    fn at_most(what: String, found: Option<f64>, wanted: f64) -> Self {
        let reached = found.is_some_and(|found| found <= wanted);
        Self {
            what,
            found: found.map(|f| format!("{f:.2}")),
            wanted: format!("at most {wanted:.2}"),
            reached,
        }
    }
}

/// Those of a plain run, for the models that have some.
pub(super) fn targets(rows: &[Row]) -> Vec<Target> {
    let known = |row: &Row| RATIOS.iter().find(|(model, _)| *model == row.model).map(|(_, ratios)| *ratios);
    rows.iter().filter_map(|row| Some(of_model(row, known(row)?))).flatten().collect()
}

fn of_model(row: &Row, ratios: [f64; 3]) -> Vec<Target> {
    let model = &row.model;
    let mut found = Vec::new();
    for (test, wanted) in TESTS.into_iter().zip(ratios) {
        let mut target = Target::at_least(format!("{model}, {test}, ratio"), row.ratio(test), wanted);
        let share = row.roof_share(test).filter(|_| BOUND_BY_MEMORY.contains(&model.as_str()));
        if let (Some(share), Some(ratio)) = (share, &mut target.found) {
            target.wanted += &format!(" or {:.0} % of the memory's roof", 100.0 * ROOF_SHARE);
            *ratio += &format!(", {:.0} %", 100.0 * share);
            target.reached |= share >= ROOF_SHARE;
        }
        found.push(target);
    }
    let (ours, peer) = row.peak_rss_bytes();
    let share = peer.map(|peer| ours / peer);
    found.push(Target::at_most(format!("{model}, peak memory, share of llama.cpp's"), share, 1.0));
    if model == DEEP {
        for test in ["prefill 512", "decode 128"] {
            let grown =
                row.ratio(&format!("{test} at 2048")).zip(row.ratio(test)).map(|(deep, flat)| deep / flat);
            found.push(Target::at_least(
                format!("{model}, {test}, ratio at depth 2048 over that at 0"),
                grown,
                1.0,
            ));
        }
        found.push(Target::at_most(format!("{model}, load, s"), Some(row.load_s().0), LOAD_S));
    }
    found
}

/// Those of the long prompt.
pub(super) fn long_targets(rows: &[Row]) -> Vec<Target> {
    let of_row = |row: &Row| {
        let time = row.ratio("prefill 16384").map(|ratio| 1.0 / ratio);
        [
            Target::at_most(
                format!("{}, prompt of 16384, share of llama.cpp's time", row.model),
                time,
                LONG_TIME,
            ),
            Target::at_least(
                format!("{}, decode at depth 16384, ratio", row.model),
                row.ratio("decode 32 at 16384"),
                LONG_DECODE,
            ),
        ]
    };
    rows.iter().filter(|row| row.model == DEEP).flat_map(of_row).collect()
}

/// A Markdown table; empty where there are none.
pub(super) fn targets_table(targets: &[Target]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let mut text = "| target | wanted | found | reached |\n|---|---|---:|---|\n".to_owned();
    for Target { what, found, wanted, reached } in targets {
        let reached = if *reached { "yes" } else { "no" };
        text.push_str(&format!("| {what} | {wanted} | {} | {reached} |\n", or_dash(found.clone())));
    }
    text
}

/// Fails when one is not reached; what was not measured is not.
pub(super) fn check(targets: &[Target]) -> Result<()> {
    if targets.is_empty() {
        bail!("--check: none of these models has targets here");
    }
    let missed: Vec<_> = targets
        .iter()
        .filter(|target| !target.reached)
        .map(|target| {
            let found = target.found.as_deref().unwrap_or("not measured (no ZLLM_PEER_PYTHON?)");
            format!("{}: {found}, {} is wanted", target.what, target.wanted)
        })
        .collect();
    if !missed.is_empty() {
        bail!("{} of {} targets are not reached:\n{}", missed.len(), targets.len(), missed.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::result::tests::row;
    use super::*;

    fn missed(rows: &[Row]) -> Vec<String> {
        let missed = targets(rows).into_iter().filter(|target| !target.reached);
        missed.map(|target| target.what).collect()
    }

    fn qwen(decode: f64, deep: f64) -> Row {
        let ours = json!({"prefill 512": 250, "prefill 512 at 2048": deep, "decode 128": decode,
            "decode 128 at 2048": 190, "8 sessions": 350});
        let peer = json!({"prefill 512": 100, "prefill 512 at 2048": 80, "decode 128": 100,
            "decode 128 at 2048": 80, "8 sessions": 100});
        row("qwen2.5-coder-0.5b", ours, Some(peer))
    }

    #[test]
    fn ratios_decide_or_the_memory_where_it_bounds() {
        assert_eq!(missed(&[qwen(185.0, 200.0)]), Vec::<String>::new());
        // 180 tokens of 250 MB are 90 % of 50 GB/s.
        assert_eq!(missed(&[qwen(180.0, 200.0)]), Vec::<String>::new());
        assert_eq!(missed(&[qwen(179.0, 200.0)]), ["qwen2.5-coder-0.5b, decode 128, ratio"]);
        let small = row(
            "smollm2-135m",
            json!({"prefill 512": 44, "decode 128": 180, "8 sessions": 45}),
            Some(json!({"prefill 512": 10, "decode 128": 100, "8 sessions": 10})),
        );
        assert_eq!(missed(&[small]), ["smollm2-135m, decode 128, ratio"]);
    }

    #[test]
    fn a_ratio_that_falls_with_the_depth_and_a_missing_peer_fail() {
        let missed_deep = missed(&[qwen(185.0, 199.0)]);
        assert_eq!(missed_deep, ["qwen2.5-coder-0.5b, prefill 512, ratio at depth 2048 over that at 0"]);
        let alone =
            [row("gemma3-270m", json!({"prefill 512": 1000, "decode 128": 1000, "8 sessions": 1000}), None)];
        let error = check(&targets(&alone)).unwrap_err().to_string();
        assert!(error.starts_with("4 of 4 targets") && error.contains("not measured"), "{error}");
        assert!(targets(&[row("mine", json!({}), None)]).is_empty());
    }

    #[test]
    fn the_long_prompt_is_held_to_its_time() {
        let long = |prefill| {
            row(
                "qwen2.5-coder-0.5b",
                json!({"prefill 16384": prefill, "decode 32 at 16384": 30}),
                Some(json!({"prefill 16384": 100, "decode 32 at 16384": 20})),
            )
        };
        check(&long_targets(&[long(371)])).unwrap();
        let error = check(&long_targets(&[long(360)])).unwrap_err().to_string();
        assert!(error.contains("share of llama.cpp's time: 0.28, at most 0.27"), "{error}");
        assert!(targets_table(&long_targets(&[long(371)])).contains("| 0.27 | yes |"));
    }
}
