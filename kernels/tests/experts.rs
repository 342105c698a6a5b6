//! A feed-forward network of experts through the backend's traits: to the bit what each row gets alone from dense products
//! with its own experts, whatever the batch, the number of threads and the instruction set.

use zllm_kernels::{
    backend::{
        Activation, Experts, Input, Linear, Memory, Product, RoutedInput, RoutedProduct, Routing,
        RoutingScores, WeightSource,
    },
    blocks::BlockFormat,
    cpu::{CpuBackend, Tensor, experts::Routes, isa::Isa, matmul::PackedWeight, pool::Pool},
};

const WIDTH: usize = 96;
const HIDDEN: usize = 64;
const EXPERTS: usize = 12;
const ROWS: usize = 23;
const ACTIVATION: Activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
const ROUTING: Routing = Routing {
    experts: EXPERTS,
    used: 3,
    scores: RoutingScores::Sigmoid,
    groups: 4,
    groups_used: 2,
    normalise: true,
    scale: 2.5,
};

struct Network {
    backend: CpuBackend,
    router: PackedWeight,
    choice_bias: Tensor,
    gate: Vec<PackedWeight>,
    up: Vec<PackedWeight>,
    down: Vec<PackedWeight>,
    up_bias: Tensor,
    up_scales: Tensor,
}

fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    (0..len).map(|_| next() as f32).collect()
}

/// A file matrix of any codes, with scales that are finite.
fn file(seed: u32, format: BlockFormat, rows: usize, cols: usize) -> Vec<u8> {
    let len = rows * format.row_bytes(cols).expect("whole blocks");
    if format == BlockFormat::F16 {
        let values = noise(seed, rows * cols);
        return values.into_iter().flat_map(|v| half::f16::from_f32(v / 4.0).to_le_bytes()).collect();
    }
    let mut bytes: Vec<u8> = noise(seed, len).iter().map(|v| (v * 127.0) as i8 as u8).collect();
    for (i, block) in bytes.chunks_exact_mut(format.block_bytes()).enumerate() {
        block[..2].copy_from_slice(&half::f16::from_f32(0.01 + i as f32 * 1e-5).to_le_bytes());
    }
    bytes
}

fn tensor(backend: &mut CpuBackend, values: &[f32], rows: usize) -> Tensor {
    let mut tensor = backend.tensor(rows, values.len() / rows).unwrap();
    backend.host_rows(&mut tensor, rows).copy_from_slice(values);
    tensor
}

impl Network {
    fn new(isa: Isa, threads: usize) -> Self {
        let mut backend = CpuBackend::new(Pool::new(threads), isa);
        let mut experts = |seed, format, rows, cols| {
            let file = file(seed, format, EXPERTS * rows, cols);
            let source =
                |bytes| WeightSource { name: "experts", format, rows, cols, bytes, release: &|_| {} };
            let sources: Vec<_> = file.chunks_exact(file.len() / EXPERTS).map(source).collect();
            backend.weights(&sources).unwrap()
        };
        let gate = experts(1, BlockFormat::Q4_0, HIDDEN, WIDTH);
        let up = experts(2, BlockFormat::Q8_0, HIDDEN, WIDTH);
        let down = experts(3, BlockFormat::F16, WIDTH, HIDDEN);
        let file = file(4, BlockFormat::F16, EXPERTS, WIDTH);
        let (format, release) = (BlockFormat::F16, &|_| {});
        let source =
            WeightSource { name: "router", format, rows: EXPERTS, cols: WIDTH, bytes: &file, release };
        let router = backend.weight(source).unwrap();
        let choice_bias: Vec<f32> = noise(5, EXPERTS).iter().map(|bias| bias / 16.0).collect();
        let choice_bias = backend.vector(&choice_bias).unwrap();
        let up_bias = tensor(&mut backend, &noise(6, EXPERTS * HIDDEN), EXPERTS);
        let up_scales = backend.vector(&noise(7, EXPERTS)).unwrap();
        Self { backend, router, choice_bias, gate, up, down, up_bias, up_scales }
    }

    /// The step that a runtime makes of `input`.
    fn step(&mut self, input: &[f32], routes: &mut Routes) -> Vec<f32> {
        let Self { backend, router, choice_bias, gate, up, down, up_bias, up_scales } = self;
        let rows = input.len() / WIDTH;
        let pairs = rows * ROUTING.used;
        let input = tensor(backend, input, rows);
        let mut logits = backend.tensor(rows, EXPERTS).unwrap();
        let mut gated = backend.tensor(pairs, HIDDEN).unwrap();
        let mut upper = backend.tensor(pairs, HIDDEN).unwrap();
        let mut outputs = backend.tensor(pairs, WIDTH).unwrap();
        let mut output = backend.tensor(rows, WIDTH).unwrap();
        backend.multiply(Input::Rows(&input), rows, [Product::plain(router, &mut logits)]);
        backend.route(&logits, rows, &ROUTING, Some(choice_bias), routes);
        let (scales, biases) = (Some(&*up_scales), Some(&*up_bias));
        let products = [
            RoutedProduct { weights: gate, scales: None, biases: None, output: &mut gated },
            RoutedProduct { weights: up, scales, biases, output: &mut upper },
        ];
        backend.multiply_routed(RoutedInput::Rows(&input), routes, products);
        let input = RoutedInput::Gated { gate: &gated, up: &upper, activation: ACTIVATION };
        let product = RoutedProduct { weights: down, scales: None, biases: None, output: &mut outputs };
        backend.multiply_routed(input, routes, [product]);
        backend.combine_routed(&outputs, routes, &mut output);
        backend.host_rows(&mut output, rows).to_vec()
    }

    /// One row, an expert at a time, with dense products.
    fn dense(&mut self, input: &[f32], experts: &[u32], weights: &[f32]) -> Vec<f32> {
        let Self { backend, gate, up, down, up_bias, up_scales, .. } = self;
        let input = tensor(backend, input, 1);
        let bias = backend.host_rows(up_bias, EXPERTS).to_vec();
        let scales = backend.host_rows(up_scales, 1).to_vec();
        let mut sum = vec![0.0; WIDTH];
        for (choice, (&expert, &weight)) in experts.iter().zip(weights).enumerate() {
            let expert = expert as usize;
            let mut gated = backend.tensor(1, HIDDEN).unwrap();
            let mut upper = backend.tensor(1, HIDDEN).unwrap();
            let mut output = backend.tensor(1, WIDTH).unwrap();
            backend.multiply(Input::Rows(&input), 1, [Product::plain(&gate[expert], &mut gated)]);
            backend.multiply(Input::Rows(&input), 1, [Product::plain(&up[expert], &mut upper)]);
            let bias = &bias[expert * HIDDEN..][..HIDDEN];
            for (up, bias) in backend.host_rows(&mut upper, 1).iter_mut().zip(bias) {
                *up = *up * scales[expert] + bias;
            }
            let input = Input::Gated { gate: &gated, up: &upper, activation: ACTIVATION };
            backend.multiply(input, 1, [Product::plain(&down[expert], &mut output)]);
            for (sum, x) in sum.iter_mut().zip(backend.host_rows(&mut output, 1)) {
                *sum = if choice == 0 { weight * *x } else { weight.mul_add(*x, *sum) };
            }
        }
        sum
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn a_row_gets_what_its_experts_give_it_alone() {
    let input = noise(9, ROWS * WIDTH);
    let mut scalar = Network::new(Isa::Scalar, 1);
    let mut routes = scalar.backend.routes(ROWS, ROUTING.used).unwrap();
    scalar.step(&input, &mut routes);
    let want: Vec<_> = input
        .chunks_exact(WIDTH)
        .enumerate()
        .map(|(row, input)| {
            let (experts, weights) = routes.of_row(row);
            bits(&scalar.dense(input, experts, weights))
        })
        .collect();
    let mut chosen: Vec<_> = (0..ROWS).flat_map(|row| routes.of_row(row).0).collect();
    chosen.sort_unstable();
    chosen.dedup();
    assert!(chosen.len() > 5, "rows that choose differently: {chosen:?}");
    for isa in Isa::available() {
        for threads in 1..=3 {
            let mut network = Network::new(isa, threads);
            for batch in [ROWS, 1, 5, 16] {
                let mut row = 0;
                for part in input.chunks(batch * WIDTH) {
                    let got = network.step(part, &mut routes);
                    for got in got.chunks_exact(WIDTH) {
                        assert_eq!(bits(got), want[row], "{} {threads} row {row} of {batch}", isa.name());
                        row += 1;
                    }
                }
                assert_eq!(row, ROWS);
            }
        }
    }
}

#[test]
fn a_row_without_numbers_harms_itself_alone() {
    let mut network = Network::new(Isa::best(), 2);
    let mut routes = network.backend.routes(ROWS, ROUTING.used).unwrap();
    let mut input = noise(9, ROWS * WIDTH);
    let want = network.step(&input, &mut routes);
    input[4 * WIDTH + 7] = f32::NAN;
    let got = network.step(&input, &mut routes);
    for (row, (got, want)) in got.chunks_exact(WIDTH).zip(want.chunks_exact(WIDTH)).enumerate() {
        if row == 4 {
            assert!(got.iter().all(|v| v.is_nan()));
        } else {
            assert_eq!(bits(got), bits(want), "row {row}");
        }
    }
}
