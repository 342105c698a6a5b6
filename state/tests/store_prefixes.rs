//! Prefixes that are held for a while: until when, how many, and to whom they give way.

#[path = "common/random.rs"]
mod random;

use random::Random;
use zllm_state::{
    Action, ArenaBudget, BLOCK_TOKENS, DiskContents, EvictTarget, Fingerprint, Granted, KvStore, LeaseError,
    LeaseRequest, RunState, SavePolicy, SessionName, SessionUse, StoreOptions, Tier, disk_bytes,
};

const BLOCK_BYTES: u64 = 250_000;
const DEVICE_BLOCKS: u32 = 16;
const MAX_PREFIXES: usize = 5;
const MAX_TENANT_PREFIXES: usize = 3;
const NOW_MS: u64 = 1_700_000_000_000;

/// A store without a disk, so at most 8 blocks may be pinned.
fn store() -> KvStore {
    let mut store = KvStore::new(StoreOptions {
        save: SavePolicy::Sessions,
        disk_budget_bytes: 0,
        write_batch_bytes: 4 << 20,
        unsaved_budget_bytes: 64 << 20,
        max_sessions: 8,
        max_session_tokens: 10_000,
        max_prefixes: MAX_PREFIXES,
        max_tenant_prefixes: MAX_TENANT_PREFIXES,
        session_ttl_ms: None,
        running_save_ms: 60_000,
    });
    let budget = ArenaBudget {
        device_blocks: DEVICE_BLOCKS,
        ram_blocks: 0,
        block_bytes: BLOCK_BYTES,
        stored_bytes: disk_bytes(BLOCK_BYTES),
    };
    store.add_model("m", Fingerprint([1; 32]), budget);
    store
}

/// A text of so many blocks, unlike others' after its beginning.
fn text(of: u32, blocks: usize) -> Vec<u32> {
    (0..(blocks * BLOCK_TOKENS) as u32).map(|token| of * 100_000 + token).collect()
}

fn lease(store: &mut KvStore, tokens: &[u32]) -> Result<Granted, LeaseError> {
    let request = LeaseRequest {
        ticket: 1,
        model: "m".to_owned(),
        tenant: String::new(),
        prompt: tokens.into(),
        capacity_tokens: tokens.len(),
        has_session: false,
    };
    match store.lease(request, NOW_MS).pop() {
        Some(Action::Leased { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}

/// Computes a text of whole blocks, and says how many of its tokens were there.
fn compute(store: &mut KvStore, tokens: &[u32], session: Option<&str>) -> (u64, Vec<Action>) {
    let granted = lease(store, tokens).expect("room");
    let cached = granted.cached.total();
    for block in tokens[cached as usize / BLOCK_TOKENS * BLOCK_TOKENS..].chunks(BLOCK_TOKENS) {
        store.commit(granted.lease, block);
    }
    let session = session.map(|id| SessionUse {
        name: name(id),
        tokens: tokens.to_vec(),
        hit_tokens: cached,
        sampled: 1,
    });
    (cached, store.release(granted.lease, &[], session, false, NOW_MS))
}

fn name(id: &str) -> SessionName {
    SessionName { tenant: String::new(), id: id.to_owned() }
}

fn hold(store: &mut KvStore, tokens: &[u32], ms: u64) -> bool {
    store.hold_prefix("m", "", tokens, NOW_MS + ms).0
}

fn pinned_blocks(store: &KvStore) -> u64 {
    store.check().expect("the index's invariants hold");
    let (maps, _) = store.residency(NOW_MS);
    let runs = maps.iter().flat_map(|map| &map.runs).filter(|run| run.state == RunState::Pinned);
    runs.map(|run| run.blocks).sum()
}

/// Everything that may go does.
fn fill(store: &mut KvStore, of: u32) {
    let free = DEVICE_BLOCKS as u64 - pinned_blocks(store);
    compute(store, &text(of, free as usize), None);
}

#[test]
fn what_is_held_stays_until_its_time_is_over() {
    let mut store = store();
    let tokens = text(1, 5);
    let marked = 3 * BLOCK_TOKENS + 20;
    // Before anything of it is computed.
    assert!(hold(&mut store, &tokens[..marked], 1000));
    assert_eq!(pinned_blocks(&store), 0);
    compute(&mut store, &tokens, None);
    assert_eq!(pinned_blocks(&store), 3);
    fill(&mut store, 2);
    assert_eq!(compute(&mut store, &tokens, None).0, 3 * BLOCK_TOKENS as u64, "what is behind it has gone");
    // Used again, it stays longer, and never shorter.
    assert!(hold(&mut store, &tokens[..marked], 5000) && hold(&mut store, &tokens[..marked], 10));
    store.tick(NOW_MS + 4999);
    assert_eq!((store.held_prefixes(), pinned_blocks(&store)), (1, 3));
    store.tick(NOW_MS + 5000);
    assert_eq!((store.held_prefixes(), pinned_blocks(&store)), (0, 0));
    fill(&mut store, 3);
    assert_eq!(compute(&mut store, &tokens, None).0, 0);
}

#[test]
fn a_longer_one_takes_the_place_of_its_beginning() {
    let mut store = store();
    let tokens = text(1, 5);
    let block = |blocks: usize| &tokens[..blocks * BLOCK_TOKENS];
    assert!(hold(&mut store, block(2), 1000) && hold(&mut store, block(4), 1000));
    assert_eq!(store.held_prefixes(), 1);
    assert!(hold(&mut store, block(3), 500), "held with the longer one");
    assert_eq!(store.held_prefixes(), 1);
    assert!(hold(&mut store, block(1), 2000), "held longer than that");
    assert_eq!(store.held_prefixes(), 2);
    compute(&mut store, &tokens, None);
    store.tick(NOW_MS + 1000);
    assert_eq!(pinned_blocks(&store), 1);
    assert!(!hold(&mut store, &tokens[..BLOCK_TOKENS - 1], 9000), "less than a block");
    assert!(!store.hold_prefix("other", "", &tokens, NOW_MS + 9).0, "no such model");
}

#[test]
fn they_are_bounded_and_give_way() {
    let mut store = store();
    assert!(!hold(&mut store, &text(9, 9), 1000), "more than half of the room");
    for of in 1..=4 {
        assert!(hold(&mut store, &text(of, 2), 1000 - u64::from(of)));
        compute(&mut store, &text(of, 2), None);
        assert!(hold(&mut store, &text(1, 2), 1000), "asked for again and again");
    }
    let is_held = |store: &mut KvStore, of: u32| {
        fill(store, 90 + of);
        compute(store, &text(of, 2), None).0 > 0
    };
    assert_eq!((store.held_prefixes(), pinned_blocks(&store)), (MAX_TENANT_PREFIXES, 6));
    assert!(!is_held(&mut store, 2), "marked longest ago");
    assert!([1, 3, 4].map(|of| is_held(&mut store, of)).iter().all(|held| *held));

    // In bytes: others go for a larger one, for a session's pin, and for a request that would find no room.
    assert!(hold(&mut store, &text(5, 5), 1000));
    assert_eq!(store.held_prefixes(), 2);
    compute(&mut store, &text(6, 7), Some("s"));
    store.pin(&name("s"), true).expect("within the bound of sessions");
    assert_eq!((store.held_prefixes(), pinned_blocks(&store)), (0, 7));
    store.pin(&name("s"), false).expect("it is there");
    assert!(hold(&mut store, &text(7, 7), 1000));
    compute(&mut store, &text(7, 7), None);
    let large = lease(&mut store, &text(8, DEVICE_BLOCKS as usize)).expect("room for a request");
    assert_eq!(store.held_prefixes(), 0);
    store.release(large.lease, &[], None, false, NOW_MS);

    assert!(hold(&mut store, &text(1, 2), 1000));
    store.evict(&EvictTarget::All, Some(Tier::Ram), NOW_MS).expect("whatever is there");
    assert_eq!(store.held_prefixes(), 1);
    store.evict(&EvictTarget::All, None, NOW_MS).expect("whatever is there");
    assert_eq!(store.held_prefixes(), 0);
}

fn hold_of(store: &mut KvStore, tenant: &str, of: u32, blocks: usize) -> bool {
    store.hold_prefix("m", tenant, &text(of, blocks), NOW_MS + 1000).0
}

#[test]
fn a_tenant_loses_nothing_to_one_that_has_more() {
    let mut store = store();
    // Seven blocks have room that are not computed yet: a has six of them.
    assert!((0..3).all(|of| hold_of(&mut store, "a", of, 2)) && hold_of(&mut store, "b", 0, 1));
    assert_eq!(store.held_prefixes(), 4);
    // a gives up one of its three.
    assert!(hold_of(&mut store, "b", 1, 2));
    assert_eq!(store.held_prefixes(), 4);
    // Then b would have more, so its own go until it has less.
    assert!(hold_of(&mut store, "b", 2, 2));
    assert_eq!(store.held_prefixes(), 3);
    assert!(!hold_of(&mut store, "c", 0, 7), "beside what others have");
    assert_eq!(store.held_prefixes(), 3);
    assert!(
        hold_of(&mut store, "a", 2, 2) && hold_of(&mut store, "a", 1, 2) && hold_of(&mut store, "b", 2, 2)
    );
    assert_eq!(store.held_prefixes(), 3, "they were held already");
}

/// A prefix as the twin has it: tenant, text, blocks, until when.
type Held = (usize, u32, usize, u64);

/// What is held when this is asked for beside it: no text begins as another does.
fn hold_naively(held: &mut Vec<Held>, new: Held) -> bool {
    let (tenant, text, blocks, until) = new;
    let same = |other: &Held| (other.0, other.1) == (tenant, text);
    let covers = |other: &Held| same(other) && other.2 >= blocks && other.3 >= until;
    match held.iter().position(covers) {
        Some(place) => held[place..].rotate_left(1),
        None => {
            held.retain(|other| !same(other) || other.2 > blocks || other.3 > until);
            held.push(new);
        }
    }
    loop {
        let count = |tenant: usize| held.iter().filter(|other| other.0 == tenant).count();
        let blocks = |tenant: usize| held.iter().filter(move |other| other.0 == tenant).map(|other| other.2);
        let mut pinned = std::collections::HashSet::new();
        held.iter().for_each(|other| pinned.extend((0..other.2).map(|block| (other.0, other.1, block))));
        let pinned_bytes = pinned.len() as u64 * disk_bytes(BLOCK_BYTES);
        let is_over = held.len() > MAX_PREFIXES || pinned_bytes > u64::from(DEVICE_BLOCKS) / 2 * BLOCK_BYTES;
        let most = held.iter().max_by_key(|other| blocks(other.0).sum::<usize>()).filter(|_| is_over);
        let too_many = held.iter().position(|other| count(other.0) > MAX_TENANT_PREFIXES);
        let largest = || held.iter().position(|other| most.is_some_and(|most| most.0 == other.0));
        let Some(place) = too_many.or_else(largest) else { break };
        held.remove(place);
    }
    held.iter().any(|other| same(other) && other.2 >= blocks)
}

#[test]
fn what_is_held_is_what_a_list_would_hold() {
    let (mut refused, mut full) = (0, 0);
    for seed in 0..40 {
        let (mut store, mut held, mut random) = (store(), Vec::new(), Random::new(seed));
        for step in 0..200 {
            let place = format!("seed {seed} step {step}");
            let now = step * 10;
            store.tick(NOW_MS + now);
            held.retain(|other: &Held| other.3 > now);
            let (tenant, of) = (random.below(3) as usize, random.below(5) as u32);
            let (blocks, until) = (1 + random.below(5) as usize, now + 1 + random.below(300));
            let tokens = text(of, blocks);
            let is_held = store.hold_prefix("m", ["", "a", "b"][tenant], &tokens, NOW_MS + until).0;
            assert_eq!(is_held, hold_naively(&mut held, (tenant, of, blocks, until)), "{place}");
            assert_eq!(store.held_prefixes(), held.len(), "{place}");
            (refused, full) = (refused + u32::from(!is_held), full + u32::from(held.len() == MAX_PREFIXES));
        }
    }
    println!("{refused} were not held, {full} times there were as many as there may be");
    assert!(refused > 50 && full > 50, "{refused} {full}");
}

#[test]
fn they_go_to_disk_as_soon_as_they_are_computed() {
    let mut store = store();
    store.set_disk_budget(100 << 20);
    assert!(store.disk_ready(DiskContents::default()).is_empty());
    let tokens = text(1, 4);
    assert!(hold(&mut store, &tokens[..2 * BLOCK_TOKENS], 1000));
    assert!(compute(&mut store, &text(2, 4), None).1.is_empty(), "nobody's session");
    let (_, actions) = compute(&mut store, &tokens, None);
    let [Action::Write { id, blocks, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(blocks.len(), 2);
    assert!(store.fetched(*id) && store.written(*id, true).is_empty());
    // So they leave all of the memory to others.
    let (_, actions) = compute(&mut store, &text(3, DEVICE_BLOCKS as usize), None);
    assert!(actions.is_empty());
    assert_eq!((store.held_prefixes(), store.figures().stored_blocks), (1, 2));
}
