//! `residency`: where the kept KV lies, drawn as a map of each tier.
//!
//! A tier is a row of cells, each so many neighbouring blocks; what most of a cell's kept blocks are, the cell is, and it is
//! free when none is kept. A map has two lines for each row: how the blocks are used, and whose they are. It is 77 characters wide and needs no colours.

use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::{output, units};
use std::collections::HashMap;
use zllm_wire::{Answer, BlockRun, BlockState, Op, Residency, Tier, TierMap};

/// Cells in a row.
const ROW_CELLS: usize = 72;
/// `use  ` before a row.
const LABEL_CHARS: usize = 5;
/// Rows of a map; a larger tier has more blocks in a cell.
const MAX_ROWS: usize = 6;

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Sessions that have no letter any more.
const ANOTHER: char = '+';
/// Blocks of several sessions.
const SHARED: char = '*';

const FREE: char = '.';
const PINNED: char = '^';
const LEASED: char = '@';
/// Cached blocks by age: below each time in milliseconds, the shade.
const SHADES: [(u64, char); 4] = [(60_000, '█'), (3_600_000, '▓'), (86_400_000, '▒'), (u64::MAX, '░')];

const LEGEND: &str = "\
use  kept, last used █ within a minute, ▓ an hour, ▒ a day, ░ before that;
     ^ pinned, @ in use by a job, . free
";

/// `residency`.
pub(crate) fn residency(context: &Context) -> Result<(), Failure> {
    match context.ask(Op::Residency)? {
        Answer::Residency(residency) if context.json => output::print_json(&residency),
        Answer::Residency(residency) => output::print(&output::foreign(&page(&residency))),
        other => Err(unexpected(&other)),
    }
}

fn page(residency: &Residency) -> String {
    let letters = Letters::of(residency);
    let mut page = String::new();
    for map in &residency.tiers {
        page.push_str(&tier(map, &letters));
        page.push('\n');
    }
    page.push_str(LEGEND);
    page.push_str(&letters.legend(residency));
    page.push('\n');
    page.push_str(&rates(residency));
    page
}

fn rates(residency: &Residency) -> String {
    let read = residency.read_bytes_per_s.map(|rate| format!("{}/s", units::bytes(rate as u64)));
    let read = read.unwrap_or_else(|| "not measured yet".into());
    let mut rows = vec![("read from SSD", read), ("to be written", units::bytes(residency.unsaved_bytes))];
    for rate in &residency.compute_tokens_per_s {
        rows.push(("computed", format!("{:.0} tokens/s by {}", rate.tokens_per_s, rate.model)));
    }
    units::pairs(&rows)
}

/// Which letter stands for which session: those of most blocks come first.
struct Letters(HashMap<u32, char>);

impl Letters {
    fn of(residency: &Residency) -> Self {
        let mut blocks: HashMap<u32, u64> = HashMap::new();
        for run in residency.tiers.iter().flat_map(|map| &map.runs) {
            for session in &run.sessions {
                *blocks.entry(*session).or_default() += u64::from(run.blocks);
            }
        }
        let mut sessions: Vec<(u32, u64)> = blocks.into_iter().collect();
        sessions.sort_by_key(|&(session, blocks)| (std::cmp::Reverse(blocks), session));
        Self(sessions.into_iter().map(|(session, _)| session).zip(LETTERS.chars()).collect())
    }

    fn letter(&self, sessions: &[u32]) -> char {
        match sessions {
            [] => ' ',
            [only] => self.0.get(only).copied().unwrap_or(ANOTHER),
            _ => SHARED,
        }
    }

    /// `who  a s-1, b t/s-2, * several`, in lines that are no longer than the map.
    fn legend(&self, residency: &Residency) -> String {
        let mut named: Vec<(char, &u32)> =
            self.0.iter().map(|(session, letter)| (*letter, session)).collect();
        if named.is_empty() {
            return "who  no session has any\n".into();
        }
        named.sort_by_key(|(letter, _)| LETTERS.find(*letter));
        let name = |session: &u32| residency.sessions.get(*session as usize).map(ToString::to_string);
        let mut words: Vec<String> = named
            .into_iter()
            .map(|(letter, session)| format!("{letter} {}", name(session).unwrap_or_else(|| "?".into())))
            .collect();
        if residency.tiers.iter().flat_map(|map| &map.runs).any(|run| run.sessions.len() > 1) {
            words.push(format!("{SHARED} several"));
        }
        if residency.sessions.len() > LETTERS.len() {
            words.push(format!("{ANOTHER} another"));
        }
        let mut lines = vec!["who ".to_owned()];
        for word in words {
            let line = lines.last_mut().expect("begun above");
            if line.chars().count() + 1 + word.chars().count() > LABEL_CHARS + ROW_CELLS
                && line.trim() != "who"
            {
                lines.push(format!("     {word},"));
            } else {
                line.push_str(&format!(" {word},"));
            }
        }
        format!("{}\n", lines.join("\n").trim_end_matches(','))
    }
}

/// One tier: how full it is, and its map.
fn tier(map: &TierMap, letters: &Letters) -> String {
    let place = match (&map.model, map.tier) {
        (Some(model), tier) => format!("{model} {}", units::place(tier)),
        (None, Tier::Ssd) => "SSD, all models".into(),
        (None, tier) => format!("all models {}", units::place(tier)),
    };
    let taken: u64 =
        map.runs.iter().filter(|run| run.state != BlockState::Free).map(|run| u64::from(run.blocks)).sum();
    let drawn: u64 = map.runs.iter().map(|run| u64::from(run.blocks)).sum();
    let all = drawn.max(map.capacity_blocks);
    if all == 0 {
        let why = match map.capacity_bytes {
            0 if map.tier == Tier::Ssd => "none; `zllmctl status` says why".into(),
            0 => "none".into(),
            bytes => format!("nothing yet, of {}", units::bytes(bytes)),
        };
        return format!("{place}: {why}\n");
    }
    let blocks_in_cell = all.div_ceil((ROW_CELLS * MAX_ROWS) as u64).max(1);
    let mut out = format!(
        "{place}: {taken} of {}, {} of {}{}\n",
        units::count(all, "block"),
        units::bytes(map.used_bytes),
        units::bytes(map.capacity_bytes),
        if blocks_in_cell > 1 { format!(", {blocks_in_cell} in a cell") } else { String::new() }
    );
    let cells = cells(&map.runs, all, blocks_in_cell, letters);
    for row in cells.chunks(ROW_CELLS) {
        let used: String = row.iter().map(|cell| cell.0).collect();
        let whose: String = row.iter().map(|cell| cell.1).collect();
        out.push_str(&format!("use  {used}\n"));
        if !whose.trim().is_empty() {
            out.push_str(&format!("who  {}\n", whose.trim_end()));
        }
    }
    out
}

/// What each cell shows: how most of its blocks are used, and whose most of them are.
fn cells(runs: &[BlockRun], all: u64, blocks_in_cell: u64, letters: &Letters) -> Vec<(char, char)> {
    let mut cells = Vec::new();
    let mut tally = Tally::default();
    let drawn: u64 = runs.iter().map(|run| u64::from(run.blocks)).sum();
    let beyond = (all - drawn, FREE, ' ');
    let parts = runs.iter().map(|run| (run.blocks.into(), usage(run), letters.letter(&run.sessions)));
    for (mut left, used, whose) in parts.chain([beyond]) {
        while left > 0 {
            let blocks = left.min(blocks_in_cell - tally.blocks);
            tally.add(blocks, used, whose);
            left -= blocks;
            if tally.blocks == blocks_in_cell {
                cells.push(std::mem::take(&mut tally).most());
            }
        }
    }
    if tally.blocks > 0 {
        cells.push(tally.most());
    }
    cells
}

fn usage(run: &BlockRun) -> char {
    match run.state {
        BlockState::Free => FREE,
        BlockState::Pinned => PINNED,
        BlockState::Leased => LEASED,
        BlockState::Cached => {
            let shade = SHADES.iter().find(|(below_ms, _)| run.age_ms < *below_ms);
            shade.unwrap_or(&SHADES[SHADES.len() - 1]).1
        }
    }
}

/// Blocks of one cell by what they are; a cell has few kinds.
#[derive(Default)]
struct Tally {
    blocks: u64,
    used: Vec<(char, u64)>,
    whose: Vec<(char, u64)>,
}

impl Tally {
    fn add(&mut self, blocks: u64, used: char, whose: char) {
        self.blocks += blocks;
        for (kinds, kind) in [(&mut self.used, used), (&mut self.whose, whose)] {
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += blocks,
                None => kinds.push((kind, blocks)),
            }
        }
    }

    /// The most frequent kinds; of two, the one that came first. One block that is kept shows in a free cell.
    fn most(self) -> (char, char) {
        let most = |kinds: Vec<(char, u64)>, nothing: char| {
            let kept = kinds.into_iter().rev().filter(|(kind, _)| *kind != nothing);
            kept.max_by_key(|(_, count)| *count).map_or(nothing, |(kind, _)| kind)
        };
        (most(self.used, FREE), most(self.whose, ' '))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(blocks: u32, state: BlockState, sessions: &[u32], age_ms: u64) -> BlockRun {
        BlockRun { blocks, state, sessions: sessions.to_vec(), age_ms }
    }

    #[test]
    fn a_cell_is_what_most_of_it_is() {
        let letters = Letters(HashMap::from([(0, 'a'), (1, 'b')]));
        let runs = [
            run(3, BlockState::Cached, &[0], 0),
            run(5, BlockState::Pinned, &[1], 0),
            run(1, BlockState::Leased, &[0, 1], 0),
        ];
        let drawn: String = cells(&runs, 12, 4, &letters).into_iter().flat_map(|(a, b)| [a, b]).collect();
        assert_eq!(drawn, "█a^b@*");
        let each: String = cells(&runs, 10, 1, &letters).into_iter().map(|(used, _)| used).collect();
        assert_eq!(each, "███^^^^^@.");
        assert!(cells(&[], 0, 1, &letters).is_empty());
    }

    #[test]
    fn ages_have_their_shades() {
        let ages = [0, 59_999, 60_000, 3_600_000, 86_400_000, u64::MAX];
        let shades: String = ages.map(|age| usage(&run(1, BlockState::Cached, &[], age))).iter().collect();
        assert_eq!(shades, "██▓▒░░");
    }

    #[test]
    fn the_largest_sessions_have_letters_and_no_line_is_too_long() {
        let many: Vec<u32> = (0..60).collect();
        let map = TierMap {
            tier: Tier::Ssd,
            model: None,
            block_bytes: 1 << 20,
            capacity_blocks: 100_000,
            capacity_bytes: 100_000 << 20,
            used_bytes: 1 << 30,
            runs: many.iter().map(|&session| run(session + 1, BlockState::Cached, &[session], 1)).collect(),
        };
        let id = |number: &u32| zllm_wire::SessionId::new(format!("session-{number}")).unwrap();
        let sessions = many.iter().map(|number| zllm_wire::SessionRef { tenant: None, id: id(number) });
        let residency = Residency {
            tiers: vec![map],
            sessions: sessions.collect(),
            read_bytes_per_s: None,
            compute_tokens_per_s: vec![],
            unsaved_bytes: 0,
        };
        let letters = Letters::of(&residency);
        assert_eq!((letters.letter(&[59]), letters.letter(&[0]), letters.letter(&[])), ('a', ANOTHER, ' '));
        let page = page(&residency);
        assert!(page.contains("232 in a cell") && page.contains("a session-59,"), "{page}");
        let longest = page.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= 80, "{longest} characters wide:\n{page}");
    }
}
