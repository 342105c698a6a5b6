//! A step of decoding allocates nothing once its scratch has grown: counted by the allocator itself.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use zllm_kernels::{
    backend::{KvFormat, KvLayer, RopeStyle, Span},
    cpu::{
        attention::{AttendArgs, AttendScratch, append, attend},
        isa::Isa,
        kv::{KvArena, KvLayout},
        ops::{Norm, RopeParams, RopeTables, rms_norm_in_place, rope},
        pool::Pool,
    },
};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing_after_the_first() {
    let layer = KvLayer { kv_heads: 2, k_dim: 64, v_dim: 64 };
    let layout = KvLayout::new(KvFormat::I16, &[layer]).expect("supported heads");
    let mut arena = KvArena::new(layout, 40).expect("a small arena");
    let blocks: Vec<u32> = (0..40).collect();
    let (pool, isa) = (Pool::new(2), Isa::best());
    let (mut q, k) = (vec![0.5; 14 * 64], vec![0.25; 2 * 64]);
    let mut out = vec![0.0; 14 * 64];
    let (mut scratch, mut tables) = (AttendScratch::default(), RopeTables::new(64, 1e4, 1.0, None, 1.0));
    let mut step = |position: usize| {
        let spans = [Span { first_row: 0, rows: 1, position, blocks: &blocks }];
        let params = RopeParams { rotary_dim: 64, style: RopeStyle::Neox, tables: &mut tables };
        rms_norm_in_place(&pool, isa, &mut q, Norm { weight: &k[..64], epsilon: 1e-6 });
        rope(&pool, isa, &mut q, 64, &[position], params);
        append(&pool, isa, &mut arena, 0, &spans, &k, &k);
        let args = AttendArgs {
            layer: 0,
            heads: 14,
            spans: &spans,
            q: &q,
            scale: 0.125,
            window: None,
            softcap: None,
            sinks: None,
            out: &mut out,
        };
        attend(&pool, isa, &arena, args, &mut scratch);
    };
    // Earlier blocks hold zeros, which is a valid cache; the last position needs the most room.
    step(2559);
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the count counts");
    // The test harness has a thread of its own, which may allocate now and then; a step that allocates does so each time.
    let fewest = (0..5).map(|_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (2500..2559).for_each(&mut step);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    });
    assert_eq!(fewest.min(), Some(0));
}
