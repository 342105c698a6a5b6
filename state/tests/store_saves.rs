//! When a save is answered, and with what: not before the blocks are on disk, wherever they were before.

use zllm_state::{
    Action, ArenaBudget, DiskContents, EvictTarget, Fingerprint, KvStore, LeaseId, LeaseRequest, SaveOutcome,
    SavePolicy, SessionName, SessionUse, StoreOptions, Tier, disk_bytes,
};

const BLOCK_BYTES: u64 = 250_000;
const NOW_MS: u64 = 1_700_000_000_000;

fn name() -> SessionName {
    SessionName { tenant: String::new(), id: "s".to_owned() }
}

/// Does what the store asks of a disk that does everything; what was answered to saves.
fn carry_out(store: &mut KvStore, mut actions: Vec<Action>) -> Vec<SaveOutcome> {
    let mut outcomes = Vec::new();
    while !actions.is_empty() {
        let mut more = Vec::new();
        for action in actions {
            match action {
                Action::Write { id, .. } => {
                    assert!(store.fetched(id));
                    more.extend(store.written(id, true));
                }
                Action::WriteSessions { id, .. } => more.extend(store.written(id, true)),
                Action::Saved { outcome, .. } => outcomes.push(outcome),
                other => panic!("not asked for: {other:?}"),
            }
        }
        actions = more;
    }
    outcomes
}

/// A store with a session of two blocks, which is on disk.
fn saved_session() -> KvStore {
    let (mut store, actions) = ended_session(4 << 20);
    carry_out(&mut store, actions);
    assert_eq!(store.session_view(&name()).map(|view| view.blocks.ssd), Some(2));
    store
}

/// A store whose session of two blocks has just ended, and what it asks for then.
fn ended_session(write_batch_bytes: u64) -> (KvStore, Vec<Action>) {
    let mut store = KvStore::new(StoreOptions {
        save: SavePolicy::Sessions,
        disk_budget_bytes: 100 << 20,
        write_batch_bytes,
        unsaved_budget_bytes: 64 << 20,
        max_sessions: 8,
        max_session_tokens: 1000,
        max_prefixes: 4,
        max_tenant_prefixes: 4,
        session_ttl_ms: None,
        running_save_ms: 60_000,
    });
    let stored_bytes = disk_bytes(BLOCK_BYTES);
    let budget = ArenaBudget { device_blocks: 8, ram_blocks: 0, block_bytes: BLOCK_BYTES, stored_bytes };
    store.add_model("m", Fingerprint([1; 32]), budget);
    let actions = store.disk_ready(DiskContents::default());
    carry_out(&mut store, actions);
    let tokens: Vec<u32> = (0..100).collect();
    let lease = lease(&mut store, &tokens);
    store.commit(lease, &tokens[..64]);
    let tail = tokens[64..].to_vec();
    let session = SessionUse { name: name(), tokens, hit_tokens: 0, sampled: 1 };
    let actions = store.release(lease, &tail, Some(session), false, NOW_MS);
    (store, actions)
}

/// A lease for these tokens and no more; whatever its prefix needs is done at once.
fn lease(store: &mut KvStore, tokens: &[u32]) -> LeaseId {
    let request = LeaseRequest {
        ticket: 1,
        model: "m".to_owned(),
        tenant: String::new(),
        prompt: tokens.into(),
        capacity_tokens: tokens.len(),
        has_session: true,
    };
    let actions = store.lease(request, NOW_MS);
    let Some(Action::Leased { result: Ok(granted), .. }) = actions.last() else { panic!("{actions:?}") };
    granted.lease
}

#[test]
fn what_was_evicted_from_disk_is_there_again_before_a_save_is_answered() {
    let mut store = saved_session();
    let (evicted, actions) =
        store.evict(&EvictTarget::Session(name()), Some(Tier::Ssd), NOW_MS).expect("it is there");
    assert_eq!((evicted.blocks.ssd, carry_out(&mut store, actions).len()), (2, 0));
    let actions = store.save(2, Some(&name()));
    assert!(matches!(actions[..], [Action::Write { .. }]), "written first, answered later: {actions:?}");
    let outcomes = carry_out(&mut store, actions);
    let bytes = 2 * disk_bytes(BLOCK_BYTES);
    assert_eq!(outcomes, [SaveOutcome::Done { sessions: 1, blocks: 2, bytes }]);
}

#[test]
fn what_is_evicted_while_its_tail_is_being_written_goes_too() {
    let (mut store, actions) = ended_session(1);
    let [Action::Write { id, blocks, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(blocks.len(), 1, "the tail waits for the second write");
    assert!(store.fetched(*id));
    let actions = store.written(*id, true);
    let [Action::Write { id, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(store.fetched(*id));
    let (_, more) = store.evict(&EvictTarget::All, None, NOW_MS).expect("something is there");
    assert!(more.is_empty(), "one write at a time");
    let actions = store.written(*id, true);
    carry_out(&mut store, actions);
    assert_eq!(store.figures().stored_blocks, 0);
}

#[test]
fn a_manifest_waits_for_the_block_that_took_over_its_tail() {
    let (mut store, actions) = ended_session(1);
    let [Action::Write { id, blocks, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(blocks.len(), 1, "the tail waits for the second write");
    let longer: Vec<u32> = (0..130).collect();
    let next = lease(&mut store, &longer);
    store.commit(next, &longer[64..128]);
    assert!(store.fetched(*id));
    let actions = store.written(*id, true);
    let [Action::Write { id, blocks, .. }] = &actions[..] else { panic!("not whole on disk: {actions:?}") };
    assert_eq!(blocks[0].tokens, longer[64..128], "it holds the tail's tokens");
    assert!(store.fetched(*id));
    let actions = store.written(*id, true);
    let [Action::WriteSessions { put, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(put[0].tokens, longer[..100], "the session has not gone on yet");
}

#[test]
fn a_tail_that_is_part_of_a_longer_block_is_saved_with_that() {
    let (mut store, actions) = ended_session(4 << 20);
    // Nobody wants this one to be saved.
    let longer: Vec<u32> = (500..628).collect();
    let first = lease(&mut store, &longer);
    longer.chunks(64).for_each(|block| store.commit(first, block));
    let unsaved = store.release(first, &[], None, false, NOW_MS);
    assert!(unsaved.is_empty(), "one write at a time");
    let second = lease(&mut store, &longer[..100]);
    let name = SessionName { id: "t".to_owned(), ..name() };
    let session =
        SessionUse { name: name.clone(), tokens: longer[..100].to_vec(), hit_tokens: 99, sampled: 1 };
    store.release(second, &longer[64..100], Some(session), false, NOW_MS);
    carry_out(&mut store, actions);
    let (evicted, actions) = store.evict(&EvictTarget::Session(name), None, NOW_MS).expect("it is there");
    carry_out(&mut store, actions);
    assert_eq!(evicted.blocks.ssd, 2, "the longer block was on disk for it, and goes with it");
}

#[test]
fn what_waits_for_its_write_outlives_an_eviction_from_memory() {
    let (mut store, actions) = ended_session(1);
    for tier in [Tier::Device, Tier::Ram] {
        let (evicted, more) = store.evict(&EvictTarget::All, Some(tier), NOW_MS).expect("something is there");
        assert_eq!((evicted.blocks.total(), more.len()), (0, 0), "it is nowhere else");
    }
    carry_out(&mut store, actions);
    assert_eq!((store.figures().stored_blocks, store.figures().lost_unsaved_blocks), (2, 0));
}
