//! The index against a naive twin, over random histories of leases, writes, reads, evictions, pins and losses.
//!
//! The twin keeps whole token sequences, no counters and no tree; it recounts everything after each step. It also plays
//! the machine: it keeps for each slot which tokens' KV is in it, and for each key what lies on disk, carries out every
//! copy, read and write, and fails when a slot that is found as a prefix holds anything else.

mod index_twin;

use index_twin::{Op, Twin};
use proptest::prelude::*;
use zllm_state::Tier;

/// Texts that part in few places, inside blocks and at their ends, early and late; then a run of
/// one symbol.
fn content() -> impl Strategy<Value = Vec<u32>> {
    let length = prop::sample::select(vec![0usize, 1, 7, 63, 64, 65, 100, 128, 129, 190, 256, 257, 300, 330]);
    let run = prop::sample::select(vec![0usize, 0, 1, 9, 64, 65]);
    (0u32..4, length, 0u32..2, run).prop_map(|(text, length, symbol, run)| {
        let parts_at = [usize::MAX, 70, 128, 300][text as usize];
        let mut tokens: Vec<u32> = (0..length).map(|at| if at < parts_at { 0 } else { text }).collect();
        tokens.extend(std::iter::repeat_n(symbol, run));
        tokens
    })
}

fn tier() -> impl Strategy<Value = Option<Tier>> {
    prop::sample::select(vec![None, Some(Tier::Device), Some(Tier::Ram), Some(Tier::Ssd)])
}

fn op() -> impl Strategy<Value = Op> {
    let arena = || 0usize..2;
    let root = || 0u8..2;
    prop_oneof![
        8 => (arena(), root(), content(), 0usize..150)
            .prop_map(|(arena, root, content, growth)| Op::Lease { arena, root, content, growth }),
        8 => (0usize..8, 1usize..7, 0u32..2)
            .prop_map(|(which, blocks, symbol)| Op::Commit { which, blocks, symbol }),
        10 => (0usize..8, 0usize..64, 0u32..2)
            .prop_map(|(which, tail, symbol)| Op::Release { which, tail, symbol }),
        3 => Just(Op::Night),
        5 => (0usize..64).prop_map(|which| Op::Want { which }),
        5 => (1u64..9).prop_map(|blocks| Op::NextWrites { blocks }),
        2 => (0usize..4).prop_map(|which| Op::Copied { which }),
        4 => (0usize..4, prop::bool::weighted(0.8)).prop_map(|(which, ok)| Op::Done { which, ok }),
        9 => (arena(), root(), content(), any::<bool>())
            .prop_map(|(arena, root, content, on_device)| Op::BeginRestore { arena, root, content, on_device }),
        5 => (0usize..4, 0usize..12).prop_map(|(which, good)| Op::FinishRestore { which, good }),
        2 => (0usize..64, tier()).prop_map(|(which, from)| Op::Evict { which, from }),
        3 => tier().prop_map(|from| Op::EvictAll { from }),
        2 => prop::collection::vec(0usize..64, 0..2).prop_map(|which| Op::Pin { which }),
        1 => (0u64..8, 0u64..20).prop_map(|(needed, budget)| Op::MakeStoredRoom { needed, budget }),
        2 => Just(Op::TakeDeletes),
        1 => (0usize..64).prop_map(|which| Op::DropStored { which }),
        1 => (0u8..20).prop_map(|dice| Op::Rare { dice }),
        1 => (arena(), 0u8..3).prop_map(|(arena, cost)| Op::SetCosts { arena, cost }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn index_agrees_with_the_twin(
        ops in prop::collection::vec(op(), 1..150),
        budgets in prop::sample::select(vec![[(8, 4), (6, 2)], [(7, 0), (7, 12)], [(14, 8), (3, 3)]]),
        second_use in any::<bool>(),
    ) {
        let mut twin = Twin::new(budgets, second_use);
        for op in &ops {
            twin.apply(op);
        }
        twin.finish();
    }
}
