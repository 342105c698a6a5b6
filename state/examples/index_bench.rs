//! What the index costs: memory for each block, and the time of its calls.
//!
//! `cargo run --release -p zllm-state --example index_bench [blocks]`
//!
//! The table is filled with conversations of 20 blocks and a tail. One of eight system prompts of 350 tokens begins each
//! of them, so that thousands of blocks have one parent, and differ from a point inside a block. All blocks are in RAM
//! and on SSD, which is the most that the index has to remember. Memory is what the process has grown by, so it counts
//! the hash table, the orders of eviction, the free lists and the allocator's waste. Then a conversation of 100,000
//! tokens is looked up, leased and read back, again and again.

use std::time::{Duration, Instant};
use zllm_state::index::{ArenaBudget, ArenaId, Index, IndexOptions};
use zllm_state::{BLOCK_TOKENS, BlockKey, Fingerprint, Tier, block_keys};

const SYSTEM_PROMPTS: u64 = 8;
const SYSTEM_TOKENS: usize = 350;
const CONVERSATION_TOKENS: usize = 20 * BLOCK_TOKENS + 30;
const LONG_TOKENS: usize = 100_000;
/// Qwen2.5's vocabulary.
const VOCABULARY: u64 = 151_936;
const STORED_BYTES: u64 = 1;

#[expect(clippy::disallowed_methods, reason = "a benchmark is what reads a clock")]
fn now() -> Instant {
    Instant::now()
}

/// Bytes of memory that the process has in use (Linux: the second field of `statm`, in pages of 4 KiB).
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells the memory of a process");
    let resident = pages.split(' ').nth(1).expect("seven fields");
    resident.parse::<u64>().expect("a number of pages") * 4096
}

/// Uniform tokens; SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn token(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % VOCABULARY) as u32
    }

    fn text(seed: u64, tokens: usize) -> Vec<u32> {
        let mut random = Self(seed << 32);
        (0..tokens).map(|_| random.token()).collect()
    }
}

fn conversation(number: u64, tokens: usize) -> Vec<u32> {
    let mut text = Random::text(number % SYSTEM_PROMPTS, SYSTEM_TOKENS);
    text.extend(Random::text(1000 + number, tokens - SYSTEM_TOKENS));
    text
}

/// Times of one kind of call.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn of<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = now();
        let result = call();
        self.0.push(start.elapsed_since());
        result
    }

    fn print(&mut self, what: &str) {
        self.0.sort_unstable();
        let us = |at: usize| self.0[at].as_secs_f64() * 1e6;
        let last = self.0.len() - 1;
        println!(
            "{what:44} p50 {:9.1} us   p99 {:9.1} us   max {:9.1} us",
            us(last / 2),
            us(last * 99 / 100),
            us(last)
        );
    }
}

trait Since {
    fn elapsed_since(self) -> Duration;
}

impl Since for Instant {
    fn elapsed_since(self) -> Duration {
        now() - self
    }
}

struct Bench {
    index: Index,
    arena: ArenaId,
    root: BlockKey,
    lease: Times,
    commit: Times,
    release: Times,
    store: Times,
    now_ms: u64,
}

impl Bench {
    /// One whole request and the write of what it left.
    fn request(&mut self, text: &[u32]) {
        self.now_ms += 1;
        let (index, arena, root, now_ms) = (&mut self.index, self.arena, self.root, self.now_ms);
        let grant =
            self.lease.of(|| index.lease(arena, root, text, text.len(), now_ms)).expect("room is made");
        let cached = grant.cached.total() as usize / BLOCK_TOKENS;
        let blocks = text.chunks_exact(BLOCK_TOKENS);
        let tail = blocks.remainder();
        for block in blocks.skip(cached) {
            self.commit.of(|| index.commit(grant.lease, block));
        }
        self.release.of(|| index.release(grant.lease, tail, now_ms));
        let last = block_keys(root, text).last().expect("a text");
        self.store.of(|| {
            index.want_stored(std::iter::once(&last));
            while let Some(writes) = index.next_writes(64 * STORED_BYTES) {
                let keys: Vec<BlockKey> = writes.blocks.iter().map(|block| block.key).collect();
                index.writes_copied(&keys);
                index.writes_done(&keys, true);
            }
        });
    }
}

fn main() {
    let blocks: u64 = std::env::args().nth(1).map_or(1_000_000, |blocks| blocks.parse().expect("a number"));
    let before = resident_bytes();
    let mut index = Index::new(IndexOptions::default());
    let arena = index.add_arena(ArenaBudget {
        device_blocks: 4096,
        ram_blocks: blocks as u32 + 4096,
        block_bytes: 1,
        stored_bytes: STORED_BYTES,
    });
    let root = BlockKey::root(Fingerprint([7; 32]), "");
    let (lease, commit, release, store) = Default::default();
    let mut bench = Bench { index, arena, root, lease, commit, release, store, now_ms: 0 };
    let mut conversations = 0;
    while bench.index.figures(arena).device.cached + bench.index.figures(arena).ram.cached < blocks as u32 {
        bench.request(&conversation(conversations, CONVERSATION_TOKENS));
        conversations += 1;
    }
    let timed = [&bench.lease, &bench.commit, &bench.release, &bench.store];
    let own: u64 = timed.iter().map(|times| times.0.capacity() as u64 * size_of::<Duration>() as u64).sum();
    let count = bench.index.iter().count() as u64;
    let grown = resident_bytes() - before - own;
    println!("{conversations} conversations, {count} blocks in RAM and on SSD");
    println!("{:.1} bytes a block, tokens and all\n", grown as f64 / count as f64);
    bench.lease.print("lease, 1,310 tokens, 350 of them shared");
    bench.commit.print("commit of a block");
    bench.release.print("release, 20 blocks and a tail");
    bench.store.print("want, hand out and store what it left");

    let (mut again, mut parted) = (Times::default(), Times::default());
    for number in 0..2000 {
        let number = number * 7919 % conversations;
        let mut text = conversation(number, CONVERSATION_TOKENS);
        text.truncate(SYSTEM_TOKENS + 700);
        let missing = again.of(|| bench.index.missing(arena, root, &text));
        assert_eq!(missing.tokens, 0);
        // A new conversation: its place is between two of thousands of siblings.
        let text = conversation(conversations + number, CONVERSATION_TOKENS);
        let missing = parted.of(|| bench.index.missing(arena, root, &text));
        assert_eq!(missing.tokens, 0);
    }
    println!();
    again.print("lookup of 1,050 tokens that are there");
    parted.print("lookup that parts among thousands of siblings");
    long(&mut bench);
}

/// One conversation of 100,000 tokens.
fn long(bench: &mut Bench) {
    let text = Random::text(999, LONG_TOKENS);
    bench.request(&text);
    let keys: Vec<BlockKey> = block_keys(bench.root, &text).collect();
    let (mut lookup, mut lease, mut release) = (Times::default(), Times::default(), Times::default());
    let (mut missing, mut begin, mut finish) = (Times::default(), Times::default(), Times::default());
    for round in 0..200 {
        let (index, arena, root) = (&mut bench.index, bench.arena, bench.root);
        assert_eq!(lookup.of(|| index.missing(arena, root, &text)).tokens, 0);
        let grant = lease.of(|| index.lease(arena, root, &text, text.len(), 1_000_000 + round));
        let grant = grant.expect("room is made");
        assert_eq!(grant.cached.total() as usize, LONG_TOKENS - 1, "all but the last token");
        release.of(|| index.release(grant.lease, &[], 1_000_000 + round));
        index.evict(keys.iter(), Some(Tier::Device));
        index.evict(keys.iter(), Some(Tier::Ram));
        let lacking = missing.of(|| index.missing(arena, root, &text));
        assert_eq!(lacking.tokens as usize, LONG_TOKENS - 1);
        let restore = begin.of(|| index.begin_restore(arena, root, &text, Tier::Device, 1_000_000 + round));
        let restore = restore.expect("it is on SSD");
        let ok = vec![true; restore.reads.len()];
        finish.of(|| index.finish_restore(restore.id, &ok));
    }
    println!();
    lookup.print("lookup of 100,000 tokens in memory");
    lease.print("lease of 100,000 tokens in memory");
    release.print("release of 100,000 tokens");
    missing.print("lookup of 100,000 tokens on SSD");
    begin.print("begin to read 100,000 tokens from SSD");
    finish.print("finish to read 100,000 tokens from SSD");
}
