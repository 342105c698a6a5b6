//! The rules of the index one by one, on small tables: who goes first, what stays, what is said of a miss.

use zllm_state::index::{ArenaBudget, ArenaId, Grant, Index, IndexOptions, LeaseError, Writes};
use zllm_state::{BLOCK_TOKENS, BlockKey, ByTier, Fingerprint, StoredBlock, Tier, block_keys};

const STORED_BYTES: u64 = 10;

struct Table {
    index: Index,
    arena: ArenaId,
    root: BlockKey,
    now_ms: u64,
}

impl Table {
    fn new(device_blocks: u32, ram_blocks: u32) -> Self {
        let mut index = Index::new(IndexOptions::default());
        let budget = ArenaBudget { device_blocks, ram_blocks, block_bytes: 100, stored_bytes: STORED_BYTES };
        let arena = index.add_arena(budget);
        Self { index, arena, root: BlockKey::root(Fingerprint([1; 32]), ""), now_ms: 0 }
    }

    fn lease(&mut self, prompt: &[u32]) -> Result<Grant, LeaseError> {
        self.now_ms += 1;
        self.index.lease(self.arena, self.root, prompt, prompt.len(), self.now_ms)
    }

    /// A request that ends right after its prompt; returns what was cached.
    fn request(&mut self, prompt: &[u32]) -> ByTier {
        let grant = self.lease(prompt).expect("room is made");
        let blocks = prompt.chunks_exact(BLOCK_TOKENS);
        let tail = blocks.remainder().to_vec();
        let cached = grant.cached.total() as usize / BLOCK_TOKENS;
        blocks.skip(cached).for_each(|block| self.index.commit(grant.lease, block));
        self.index.release(grant.lease, &tail, self.now_ms);
        self.index.check().expect("invariants");
        grant.cached
    }

    fn keys(&self, text: &[u32]) -> Vec<BlockKey> {
        block_keys(self.root, text).collect()
    }

    /// Leading blocks in memory.
    fn resident(&self, text: &[u32]) -> usize {
        let views = self.keys(text).into_iter().map(|key| self.index.view(&key));
        views.take_while(|view| view.is_some_and(|view| view.memory.is_some())).count()
    }

    fn stored(&self, text: &[u32]) -> usize {
        let views = self.keys(text).into_iter().map(|key| self.index.view(&key));
        views.take_while(|view| view.is_some_and(|view| view.stored)).count()
    }

    fn write_all(&mut self) -> Vec<BlockKey> {
        let mut written = Vec::new();
        while let Some(keys) = self.begin_write() {
            self.index.writes_done(&keys, true);
            written.extend(keys);
        }
        written
    }

    fn begin_write(&mut self) -> Option<Vec<BlockKey>> {
        let Writes { blocks, .. } = self.index.next_writes(100 * STORED_BYTES)?;
        let keys: Vec<BlockKey> = blocks.iter().map(|block| block.key).collect();
        self.index.writes_copied(&keys);
        Some(keys)
    }

    fn store(&mut self, text: &[u32]) {
        let keys = self.keys(text);
        self.index.want_stored(keys.iter());
        self.write_all();
        assert_eq!(self.stored(text), keys.len());
    }

    fn empty_memory(&mut self) {
        self.index.evict_all(Some(Tier::Device));
        self.index.evict_all(Some(Tier::Ram));
    }
}

/// `tokens` tokens of one conversation: no two conversations share their first.
fn text(conversation: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| conversation * 1000 + at).collect()
}

#[test]
fn one_scan_does_not_push_out_what_is_used_often() {
    let mut table = Table::new(8, 0);
    let system = text(1, 2 * BLOCK_TOKENS + 1);
    for _ in 0..5 {
        table.request(&system);
    }
    // Three times what there is room for.
    for conversation in 10..22 {
        table.request(&text(conversation, 2 * BLOCK_TOKENS));
    }
    assert_eq!(table.resident(&system[..2 * BLOCK_TOKENS]), 2, "12 prompts that never came again");
}

#[test]
fn what_is_used_all_the_time_stays() {
    let mut table = Table::new(6, 0);
    let system = text(1, 2 * BLOCK_TOKENS + 1);
    table.request(&system);
    for conversation in 10..200 {
        table.request(&text(conversation, 2 * BLOCK_TOKENS));
        let grant = table.lease(&system).expect("one block is not leased");
        assert_eq!(grant.cached.total(), 2 * BLOCK_TOKENS as u64, "after {conversation}");
        table.index.release(grant.lease, &[], table.now_ms);
    }
}

#[test]
fn fame_does_not_last_for_ever() {
    let mut table = Table::new(4, 0);
    let system = text(1, 2 * BLOCK_TOKENS + 1);
    for _ in 0..100 {
        table.request(&system);
    }
    let mut gone_after = None;
    for conversation in 10..200 {
        table.request(&text(conversation, BLOCK_TOKENS));
        if table.resident(&system[..2 * BLOCK_TOKENS]) < 2 {
            gone_after = Some(conversation - 10);
            break;
        }
    }
    // 16 uses count, each of the few other places is taken anew for one use's worth.
    let gone_after = gone_after.expect("it is not used any more");
    assert!((16..100).contains(&gone_after), "gone after {gone_after}");
}

#[test]
fn nor_does_it_on_ssd() {
    let mut table = Table::new(2, 0);
    let system = text(1, BLOCK_TOKENS);
    for _ in 0..20 {
        table.request(&system);
    }
    assert_eq!(table.index.view(&table.keys(&system)[0]).map(|view| view.uses), Some(20));
    table.store(&system);
    let last = (10..200).find(|&conversation| {
        let other = text(conversation, BLOCK_TOKENS);
        table.request(&other);
        assert!(table.index.make_stored_room(STORED_BYTES, 3 * STORED_BYTES));
        table.store(&other);
        table.stored(&system) == 0
    });
    assert_eq!(table.index.stored_bytes(), 3 * STORED_BYTES);
    assert!(last.is_some_and(|last| last > 12), "{last:?}: its one use is no more than others' one");
}

#[test]
fn with_equal_uses_the_oldest_goes_first_and_as_a_whole() {
    let mut table = Table::new(9, 0);
    let texts: Vec<_> = (1..=3).map(|conversation| text(conversation, 3 * BLOCK_TOKENS)).collect();
    for text in &texts {
        table.request(text);
    }
    table.request(&text(4, 2 * BLOCK_TOKENS));
    assert_eq!(texts.iter().map(|text| table.resident(text)).collect::<Vec<_>>(), [1, 3, 3]);
    table.request(&text(5, 2 * BLOCK_TOKENS));
    assert_eq!(texts.iter().map(|text| table.resident(text)).collect::<Vec<_>>(), [0, 2, 3]);
}

#[test]
fn what_can_be_read_back_quickly_goes_before_what_must_be_computed_again() {
    let mut table = Table::new(4, 0);
    let (old, young) = (text(1, 2 * BLOCK_TOKENS), text(2, 2 * BLOCK_TOKENS));
    table.request(&old);
    table.request(&young);
    table.store(&young);
    table.index.set_costs(table.arena, 0.1);
    table.request(&text(3, 2 * BLOCK_TOKENS));
    assert_eq!((table.resident(&old), table.resident(&young)), (2, 0));
    // Where reading is no faster than computing, being on SSD is no reason.
    let mut table = Table::new(4, 0);
    table.request(&old);
    table.request(&young);
    table.store(&young);
    table.index.set_costs(table.arena, 3.0);
    table.request(&text(3, 2 * BLOCK_TOKENS));
    assert_eq!((table.resident(&old), table.resident(&young)), (0, 2));
}

#[test]
fn what_waits_for_its_write_goes_last_and_is_counted_when_it_goes() {
    let mut table = Table::new(2, 4);
    let (wanted, other) = (text(1, 2 * BLOCK_TOKENS), text(2, 2 * BLOCK_TOKENS));
    table.request(&wanted);
    let keys = table.keys(&wanted);
    table.index.want_stored(keys.iter());
    table.request(&other);
    table.request(&text(3, 2 * BLOCK_TOKENS));
    table.request(&text(4, 2 * BLOCK_TOKENS));
    assert_eq!((table.resident(&wanted), table.resident(&other)), (2, 0), "though it is older");
    assert_eq!((table.index.unsaved_bytes(), table.index.lost_unsaved()), (20, 0));

    let mut table = Table::new(2, 0);
    table.request(&wanted);
    table.index.want_stored(keys.iter());
    table.request(&other);
    assert_eq!((table.resident(&wanted), table.index.unsaved_bytes()), (0, 0), "a request comes first");
    assert_eq!(table.index.lost_unsaved(), 2);
    assert_eq!(table.begin_write(), None, "nothing is left to write");
}

#[test]
fn blocks_move_to_ram_and_back_and_are_counted_where_they_were() {
    let mut table = Table::new(3, 6);
    let first = text(1, 2 * BLOCK_TOKENS + 10);
    table.request(&first);
    table.request(&text(2, 3 * BLOCK_TOKENS));
    let mut longer = first.clone();
    longer.extend([7; 40]);
    let cached = table.request(&longer);
    assert_eq!(cached, ByTier { device: 0, ram: 138, ssd: 0 });
    let cached = table.request(&longer);
    assert_eq!(cached, ByTier { device: 177, ram: 0, ssd: 0 }, "all but the last token");
}

#[test]
fn reads_from_ssd_are_counted_once_and_named_before() {
    let mut table = Table::new(4, 4);
    let prompt = text(1, 2 * BLOCK_TOKENS + 10);
    table.request(&prompt);
    table.store(&prompt);
    table.empty_memory();
    let missing = table.index.missing(table.arena, table.root, &prompt);
    assert_eq!((missing.tokens, missing.blocks, missing.bytes), (137, 3, 30));
    assert_eq!(table.index.restoring(table.arena, table.root, &prompt), None);
    let restore = table.index.begin_restore(table.arena, table.root, &prompt, Tier::Device, 9);
    let restore = restore.expect("three blocks of four");
    let keys: Vec<BlockKey> = restore.reads.iter().map(|read| read.key).collect();
    assert_eq!(keys, table.keys(&prompt));
    assert_eq!(table.index.restoring(table.arena, table.root, &prompt), Some(restore.id));
    assert!(table.index.begin_restore(table.arena, table.root, &prompt, Tier::Device, 9).is_none());
    assert_eq!(table.index.figures(table.arena).device.used, 3);
    table.index.finish_restore(restore.id, &[true; 3]);
    let cached = table.request(&prompt);
    assert_eq!(cached, ByTier { device: 0, ram: 0, ssd: 137 });
    assert_eq!(table.request(&prompt), ByTier { device: 137, ram: 0, ssd: 0 });
}

#[test]
fn a_copy_on_ssd_stays_while_it_is_read_or_a_child_is_written() {
    let mut table = Table::new(4, 4);
    let prompt = text(1, 2 * BLOCK_TOKENS);
    table.request(&prompt);
    let keys = table.keys(&prompt);
    table.index.want_stored(keys[..1].iter());
    table.write_all();
    table.index.want_stored(keys.iter());
    let writing = table.begin_write().expect("the second block");
    assert_eq!(writing, keys[1..]);
    assert!(!table.index.make_stored_room(1, 0), "the parent of what is being written");
    assert_eq!(table.index.evict(keys.iter(), Some(Tier::Ssd)).ssd, 0);
    table.index.want_stored(keys.iter());
    table.index.writes_done(&writing, true);
    assert_eq!(table.stored(&prompt), 2, "it was wanted again after it was evicted on its way");

    table.empty_memory();
    let restore = table.index.begin_restore(table.arena, table.root, &text(1, 200), Tier::Ram, 9);
    let restore = restore.expect("two blocks");
    assert!(!table.index.make_stored_room(1, 0), "both are being read");
    assert_eq!(table.index.evict_all(None).total(), 0);
    table.index.finish_restore(restore.id, &[true, false]);
    assert_eq!((table.resident(&prompt), table.stored(&prompt)), (1, 2));
    assert!(table.index.make_stored_room(0, 10));
    assert_eq!(
        (table.stored(&prompt), table.index.take_deletes()),
        (1, vec![keys[1]]),
        "the leaf goes first"
    );
}

#[test]
fn what_is_evicted_on_its_way_to_ssd_is_deleted_there() {
    let mut table = Table::new(4, 4);
    let prompt = text(1, BLOCK_TOKENS);
    table.request(&prompt);
    let keys = table.keys(&prompt);
    table.index.want_stored(keys.iter());
    let writing = table.begin_write().expect("one block");
    assert_eq!(table.index.evict(keys.iter(), None), ByTier { device: 1, ram: 0, ssd: 0 });
    table.index.writes_done(&writing, true);
    assert_eq!((table.index.view(&keys[0]), table.index.take_deletes()), (None, keys));
}

#[test]
fn a_tail_goes_when_a_sibling_continues_it_and_its_wish_goes_on() {
    let mut table = Table::new(8, 0);
    let (short, long) = (text(1, 70), text(1, 100));
    table.request(&short);
    let keys = table.keys(&short);
    table.index.want_stored(keys.iter());
    assert_eq!(table.request(&long).total(), 70);
    assert_eq!(
        (table.resident(&short), table.resident(&long)),
        (1, 2),
        "six tokens are held by the longer tail"
    );
    assert_eq!(table.write_all(), table.keys(&long), "what was to be kept is kept");

    // The other way round: what is continued already is not kept at all.
    table.request(&short);
    assert_eq!((table.resident(&short), table.resident(&long)), (1, 2));
    // A pinned tail stays until it is not pinned any more.
    let mut table = Table::new(8, 0);
    table.request(&short);
    table.index.pin(keys.iter());
    table.request(&long);
    assert_eq!((table.resident(&short), table.resident(&long)), (2, 2));
    table.index.pin(std::iter::empty());
    assert_eq!((table.resident(&short), table.resident(&long)), (1, 2));
    table.index.check().expect("invariants");
}

#[test]
fn a_near_miss_shows_both_sides() {
    let mut table = Table::new(16, 0);
    let kept = text(1, 400);
    table.request(&kept);
    let mut asked = kept.clone();
    asked[300..].fill(9);
    let miss = table.lease(&asked).expect("room").near_miss.expect("300 tokens are shared");
    assert_eq!(miss.shared, 300);
    assert_eq!(miss.before, kept[292..300]);
    assert_eq!(miss.kept, kept[300..316]);
    assert_eq!(miss.asked, [9; 16]);
    // At a block's end, and across one.
    let mut asked = kept.clone();
    asked[320..].fill(9);
    let miss = table.lease(&asked).expect("room").near_miss.expect("320 tokens are shared");
    assert_eq!((miss.shared, &miss.kept[..]), (320, &kept[320..336]));
    let mut asked = kept[..380].to_vec();
    asked[376..].fill(9);
    let miss = table.lease(&asked).expect("room").near_miss.expect("376 tokens are shared");
    assert_eq!((miss.shared, &miss.kept[..], &miss.asked[..]), (376, &kept[376..392], &[9; 4][..]));
    // One other token near the beginning.
    let mut asked = kept[..60].to_vec();
    asked[3] = 9;
    let miss = table.lease(&asked).expect("room").near_miss.expect("3 tokens are shared");
    assert_eq!((miss.shared, &miss.before[..], &miss.kept[..]), (3, &kept[..3], &kept[3..19]));
    assert_eq!(miss.asked, asked[3..19]);
}

#[test]
fn going_on_or_stopping_short_is_no_near_miss() {
    let mut table = Table::new(16, 16);
    let kept = text(1, 400);
    table.request(&kept);
    let mut longer = kept.clone();
    longer.extend([9; 20]);
    for prompt in [&kept[..], &kept[..300], &longer] {
        let grant = table.lease(prompt).expect("room");
        assert_eq!(grant.near_miss, None, "{} tokens", prompt.len());
        table.index.release(grant.lease, &[], 0);
    }
    assert_eq!(table.lease(&[9; 100]).expect("room").near_miss, None, "nothing begins like it");
}

#[test]
fn pinned_blocks_that_fill_the_arena_are_named_and_may_be_saved() {
    let mut table = Table::new(4, 0);
    let kept = text(1, 3 * BLOCK_TOKENS);
    table.request(&kept);
    let keys = table.keys(&kept);
    table.index.pin(keys.iter());
    let error = table.lease(&text(2, 2 * BLOCK_TOKENS)).expect_err("one block is left");
    assert_eq!(error, LeaseError::Pinned { needed_blocks: 2, available_blocks: 1 });
    assert!(error.to_string().contains("unpin"), "{error}");
    table.store(&kept);
    table.lease(&text(2, 2 * BLOCK_TOKENS)).expect("what is on SSD may leave memory");
    assert_eq!((table.resident(&kept), table.stored(&kept)), (2, 3));
    assert!(!table.index.make_stored_room(1, 0), "a pinned block keeps its copy on SSD");
}

#[test]
fn a_request_larger_than_the_device_is_refused_with_both_numbers() {
    let mut table = Table::new(4, 100);
    let error = table.lease(&text(1, 257)).expect_err("five blocks of four");
    assert_eq!(error, LeaseError::NeverFits { needed_blocks: 5, total_blocks: 4 });
    assert!(error.to_string().contains("5 KV blocks") && error.to_string().contains("has 4"), "{error}");
}

#[test]
fn the_one_block_to_copy_from_goes_when_there_is_no_other() {
    let mut table = Table::new(1, 0);
    table.request(&text(1, 10));
    let grant = table.lease(&text(1, 20)).expect("the only block");
    assert_eq!((grant.cached.total(), grant.copy), (0, None));
    let mut table = Table::new(1, 1);
    table.request(&text(1, 10));
    let grant = table.lease(&text(1, 20)).expect("the tail moves to RAM");
    assert_eq!((grant.cached.total(), grant.copy.is_some()), (10, true));
}

#[test]
fn a_second_use_is_worth_the_disk_if_so_configured() {
    for (store_on_second_use, expected) in [(false, 0), (true, 2)] {
        let mut table = Table::new(8, 0);
        table.index = Index::new(IndexOptions { store_on_second_use });
        table.arena = table.index.add_arena(ArenaBudget {
            device_blocks: 8,
            ram_blocks: 0,
            block_bytes: 100,
            stored_bytes: STORED_BYTES,
        });
        let prompt = text(1, 2 * BLOCK_TOKENS + 1);
        table.request(&prompt);
        assert_eq!(table.begin_write(), None, "used once");
        table.request(&prompt);
        assert_eq!(table.begin_write().map_or(0, |keys| keys.len()), expected);
    }
}

#[test]
fn only_sound_blocks_are_taken_from_disk() {
    let mut table = Table::new(4, 0);
    let tokens = text(1, 2 * BLOCK_TOKENS + 5);
    let keys = table.keys(&tokens);
    let block = |position: usize| StoredBlock {
        key: keys[position],
        parent: if position == 0 { table.root } else { keys[position - 1] },
        position: position as u32,
        tokens: tokens.chunks(BLOCK_TOKENS).nth(position).expect("three blocks").to_vec(),
        bytes: 7,
        written_ms: 40,
    };
    let blocks: Vec<StoredBlock> = (0..3).map(block).collect();
    let take = |index: &mut Index, block: &StoredBlock| index.insert_stored(block, STORED_BYTES);
    assert!(!take(&mut table.index, &blocks[1]), "its parent is not there");
    assert!(take(&mut table.index, &blocks[0]));
    assert!(!take(&mut table.index, &blocks[0]), "it is there already");
    let mut wrong = blocks[1].clone();
    wrong.tokens[3] += 1;
    assert!(!take(&mut table.index, &wrong), "its key names other tokens");
    let wrong = StoredBlock { position: 0, ..blocks[1].clone() };
    assert!(!take(&mut table.index, &wrong), "its parent is no root");
    assert!(take(&mut table.index, &blocks[1]) && take(&mut table.index, &blocks[2]));
    let below_tail =
        StoredBlock { key: keys[2].child(&[1]), parent: keys[2], position: 3, tokens: vec![1], ..wrong };
    assert!(!take(&mut table.index, &below_tail), "nothing follows a tail");
    assert_eq!((table.stored(&tokens), table.index.stored_bytes()), (3, 30));
    assert_eq!(table.index.missing(table.arena, table.root, &tokens).tokens, 132);
    assert_eq!(table.index.drop_stored(&keys[1]), keys[1..], "and what hangs on it");
    assert_eq!((table.stored(&tokens), table.index.stored_bytes()), (1, 10));
    table.index.check().expect("invariants");
}

#[test]
fn writes_that_were_copied_outlive_the_arena() {
    let mut table = Table::new(4, 4);
    let prompt = text(1, 2 * BLOCK_TOKENS);
    table.request(&prompt);
    let keys = table.keys(&prompt);
    table.index.want_stored(keys[..1].iter());
    let copied = table.begin_write().expect("the first block");
    table.index.want_stored(keys.iter());
    let uncopied: Vec<BlockKey> =
        table.index.next_writes(100).expect("the second").blocks.iter().map(|block| block.key).collect();
    table.index.remove_arena(table.arena);
    table.index.check().expect("invariants");
    table.index.writes_done(&copied, true);
    table.index.writes_done(&uncopied, false);
    assert_eq!((table.stored(&prompt), table.index.unsaved_bytes()), (1, 0));
    table.index.check().expect("invariants");
}
