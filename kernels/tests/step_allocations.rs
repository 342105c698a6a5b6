//! A step of decoding allocates nothing once its scratch has grown: counted by the allocator itself.

use zllm_kernels::{
    backend::{
        Activation, Experts, Input, KvFormat, KvLayer, Linear, Memory, Pointwise, Product, RopeStyle,
        RoutedInput, RoutedProduct, Routing, RoutingScores, RowNorm, Span, WeightSource,
    },
    blocks::BlockFormat,
    counting::CountingAllocator,
    cpu::{
        CpuBackend,
        attention::{AttendArgs, AttendScratch, append, attend},
        isa::Isa,
        kv::{KvArena, KvLayout},
        ops::{Heads, Norm, RopeTables, turn_heads},
        pool::Pool,
    },
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[test]
fn a_step_allocates_nothing_after_the_first() {
    let layer = KvLayer { kv_heads: 2, k_dim: 64, v_dim: 64 };
    let layout = KvLayout::new(KvFormat::I16, &[layer]).expect("supported heads");
    let mut arena = KvArena::new(layout, 40).expect("a small arena");
    let blocks: Vec<u32> = (0..40).collect();
    let (pool, isa) = (Pool::new(2), Isa::best());
    let (mut q, k) = (vec![0.5; 14 * 64], vec![0.25; 2 * 64]);
    let mut out = vec![0.0; 14 * 64];
    let (mut scratch, mut tables) =
        (AttendScratch::default(), RopeTables::new(RopeStyle::Neox, 64, 1e4, 1.0, None, 1.0));
    let mut experts = experts_step(isa);
    let mut step = |position: usize| {
        experts();
        let spans = [Span { first_row: 0, rows: 1, position, blocks: &blocks }];
        let norm = Some(Norm { weight: &k[..64], epsilon: 1e-6 });
        turn_heads(&pool, isa, [Heads { x: &mut q, norm }], 64, &[position], Some(&mut tables));
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
    // Rows choose anew each time: among some steps is one with many experts.
    (0..20).for_each(|_| step(2559));
    assert!(ALLOCATOR.allocations() > 0, "the count counts");
    // The test harness has a thread of its own, which may allocate now and then; a step that allocates does so each time.
    let fewest = (0..5).map(|_| {
        let before = ALLOCATOR.allocations();
        (2500..2559).for_each(&mut step);
        ALLOCATOR.allocations() - before
    });
    assert_eq!(fewest.min(), Some(0));
}

/// A layer of experts over some rows.
fn experts_step(isa: Isa) -> impl FnMut() {
    const EXPERTS: usize = 8;
    let routing = Routing {
        experts: EXPERTS,
        used: 2,
        scores: RoutingScores::Softmax,
        groups: 2,
        groups_used: 1,
        normalise: true,
        scale: 1.0,
    };
    let (rows, width) = (3, 64);
    let mut backend = CpuBackend::new(Pool::new(2), isa);
    let bytes = vec![7; BlockFormat::Q8_0.row_bytes(width).expect("whole blocks") * width];
    let (format, release) = (BlockFormat::Q8_0, &|_| {});
    let source = WeightSource { name: "expert", format, rows: width, cols: width, bytes: &bytes, release };
    let weights = backend.weights(&[source; EXPERTS]).expect("weights that fit");
    let mut routes = backend.routes(rows, routing.used).expect("room");
    let mut tensor = |rows, cols| backend.tensor(rows, cols).expect("room");
    let (mut logits, input, mut output) = (tensor(rows, EXPERTS), tensor(rows, width), tensor(rows, width));
    let [mut a, mut b, mut outputs] = [(); 3].map(|()| tensor(rows * routing.used, width));
    let norm_weight = backend.vector(&[1.0; 64]).expect("room");
    let mut seed = 1u32;
    move || {
        // Other experts each time.
        for logit in backend.host_rows(&mut logits, rows) {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *logit = (seed >> 28) as f32;
        }
        backend.route(&logits, rows, &routing, None, &mut routes);
        let products = [&mut a, &mut b].map(|output| RoutedProduct {
            weights: &weights,
            scales: None,
            biases: None,
            output,
        });
        backend.multiply_routed(RoutedInput::Rows(&input), &routes, products);
        let gated = RoutedInput::Gated { gate: &a, up: &b, activation: Activation::Silu };
        let down = RoutedProduct { weights: &weights, scales: None, biases: None, output: &mut outputs };
        backend.multiply_routed(gated, &routes, [down]);
        backend.combine_routed(&outputs, &routes, &mut output);
        let norm = || RowNorm { weight: &norm_weight, epsilon: 1e-6 };
        backend.add(&mut output, &input, rows, Some(norm()), 0.5);
        let product = Product { added: Some(0.5), ..Product::plain(&weights[0], &mut output) };
        backend.multiply(Input::Normed(&input, norm()), rows, [product]);
    }
}
