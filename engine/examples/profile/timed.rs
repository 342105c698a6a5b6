//! A CPU backend that notes how long each operation takes, by kind.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use zllm_kernels::{
    backend::{
        Attention, AttentionShape, DeviceError, Experts, Heads, Input, KvFormat, KvLayer, Linear, Memory,
        Pointwise, Product, Rope, RopeId, RoutedInput, RoutedProduct, Routing, RowNorm, Span, WeightSource,
    },
    cpu::{CpuBackend, pool::Pool},
};

#[expect(clippy::disallowed_methods, reason = "a profile is what reads a clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What all operations of one kind took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) calls: u32,
    pub(crate) time: Duration,
    /// Packed weights that they read; 0 where it is not known.
    pub(crate) weight_bytes: u64,
    /// Multiplications with a weight.
    pub(crate) macs: u64,
}

/// The backend.
pub(crate) struct Timed {
    inner: CpuBackend,
    sums: BTreeMap<&'static str, Sum>,
    /// Whether the next product of one matrix is the one behind attention.
    attended: bool,
}

impl Timed {
    pub(crate) fn new(inner: CpuBackend) -> Self {
        Self { inner, sums: BTreeMap::new(), attended: false }
    }

    /// Its threads.
    pub(crate) fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    /// Moves the weights to where steps read them fastest, as an idle daemon does.
    pub(crate) fn settle(&mut self) {
        while self.inner.settle_weights() {}
    }

    /// What was noted since the last time, the longest first.
    pub(crate) fn take(&mut self) -> Vec<(&'static str, Sum)> {
        let mut sums: Vec<_> = std::mem::take(&mut self.sums).into_iter().collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.time));
        sums
    }

    fn add(&mut self, kind: &'static str, time: Duration, weight_bytes: u64, macs: u64) {
        let sum = self.sums.entry(kind).or_default();
        sum.calls += 1;
        sum.time += time;
        sum.weight_bytes += weight_bytes;
        sum.macs += macs;
    }

    fn time<T>(&mut self, kind: &'static str, run: impl FnOnce(&mut CpuBackend) -> T) -> T {
        let start = now();
        let result = run(&mut self.inner);
        self.add(kind, now() - start, 0, 0);
        result
    }
}

type Tensor = <CpuBackend as Memory>::Tensor;
type Weight = <CpuBackend as Linear>::Weight;
type Kv = <CpuBackend as Attention>::Kv;
type Routes = <CpuBackend as Experts>::Routes;

impl Memory for Timed {
    type Tensor = Tensor;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn tensor(&mut self, rows: usize, cols: usize) -> Result<Tensor, DeviceError> {
        self.inner.tensor(rows, cols)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Tensor, DeviceError> {
        self.inner.vector(values)
    }

    fn gather_rows(&mut self, input: &Tensor, picks: &[usize], output: &mut Tensor) {
        self.time("rows for the head", |inner| inner.gather_rows(input, picks, output));
    }

    fn host_rows<'t>(&mut self, tensor: &'t mut Tensor, rows: usize) -> &'t mut [f32] {
        self.inner.host_rows(tensor, rows)
    }
}

impl Linear for Timed {
    type Weight = Weight;

    fn reserve_weights(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.inner.reserve_weights(bytes)
    }

    fn weight(&mut self, source: WeightSource<'_>) -> Result<Weight, DeviceError> {
        self.inner.weight(source)
    }

    fn weights(&mut self, sources: &[WeightSource<'_>]) -> Result<Vec<Weight>, DeviceError> {
        self.inner.weights(sources)
    }

    fn weight_bytes(&self, weight: &Weight) -> usize {
        self.inner.weight_bytes(weight)
    }

    fn embed(&mut self, weight: &Weight, ids: &[u32], scale: f32, output: &mut Tensor) {
        self.time("embedding", |inner| inner.embed(weight, ids, scale, output));
    }

    fn multiply<const N: usize>(
        &mut self,
        input: Input<'_, Tensor>,
        rows: usize,
        products: [Product<'_, Self>; N],
    ) {
        let kind = match (N, &input) {
            (3, _) => "product: q, k, v",
            (2, _) => "product: gate, up",
            (_, Input::Gated { .. }) => "product: down",
            (_, Input::Rows(_)) if self.attended => "product: attention's output",
            (_, Input::Rows(_)) => "product: router and the like",
            (_, Input::Normed(..)) => "product: head",
        };
        self.attended = false;
        let bytes = products.iter().map(|product| product.weight.bytes() as u64).sum();
        let weights = |product: &Product<'_, Self>| product.weight.rows() * product.weight.cols();
        let macs = products.iter().map(|product| (rows * weights(product)) as u64).sum();
        let products = products.map(|Product { weight, scale, bias, added, output }| Product {
            weight,
            scale,
            bias,
            added,
            output,
        });
        let start = now();
        self.inner.multiply(input, rows, products);
        self.add(kind, now() - start, bytes, macs);
    }
}

impl Pointwise for Timed {
    fn rms_norm(&mut self, input: &Tensor, rows: usize, norm: RowNorm<'_, Tensor>, output: &mut Tensor) {
        self.time("norms", |inner| inner.rms_norm(input, rows, norm, output));
    }

    fn prepare_rope(&mut self, rope: &Rope) -> RopeId {
        self.inner.prepare_rope(rope)
    }

    fn turn_heads<const N: usize>(
        &mut self,
        heads: [Heads<'_, Tensor>; N],
        head_dim: usize,
        positions: &[usize],
        rope: Option<RopeId>,
    ) {
        self.time("norms of heads, rope", |inner| inner.turn_heads(heads, head_dim, positions, rope));
    }

    fn add(
        &mut self,
        target: &mut Tensor,
        source: &Tensor,
        rows: usize,
        norm: Option<RowNorm<'_, Tensor>>,
        factor: f32,
    ) {
        self.time("residual", |inner| inner.add(target, source, rows, norm, factor));
    }

    fn scale(&mut self, target: &mut Tensor, rows: usize, factor: f32) {
        self.time("scales and caps", |inner| inner.scale(target, rows, factor));
    }

    fn scale_rows(&mut self, target: &mut Tensor, factors: &[f32]) {
        self.time("scales and caps", |inner| inner.scale_rows(target, factors));
    }

    fn gate_rows(&mut self, target: &mut Tensor, rows: usize, gate: &Tensor) {
        self.time("scales and caps", |inner| inner.gate_rows(target, rows, gate));
    }

    fn soft_cap(&mut self, target: &mut Tensor, rows: usize, cap: f32) {
        self.time("scales and caps", |inner| inner.soft_cap(target, rows, cap));
    }
}

impl Attention for Timed {
    type Kv = Kv;

    fn kv(&mut self, format: KvFormat, layers: &[KvLayer], blocks: usize) -> Result<Kv, DeviceError> {
        self.inner.kv(format, layers, blocks)
    }

    fn kv_block_bytes(&self, format: KvFormat, layers: &[KvLayer]) -> Result<usize, DeviceError> {
        self.inner.kv_block_bytes(format, layers)
    }

    fn lock_kv(&mut self, kv: &mut Kv) -> Result<(), DeviceError> {
        self.inner.lock_kv(kv)
    }

    fn kv_layout(&self) -> &'static str {
        self.inner.kv_layout()
    }

    fn append(&mut self, kv: &mut Kv, layer: usize, spans: &[Span<'_>], keys: &Tensor, values: &Tensor) {
        self.time("KV append", |inner| inner.append(kv, layer, spans, keys, values));
    }

    fn attend(
        &mut self,
        kv: &Kv,
        layer: usize,
        spans: &[Span<'_>],
        shape: AttentionShape,
        sinks: Option<&Tensor>,
        queries: &Tensor,
        output: &mut Tensor,
    ) {
        self.time("attention", |inner| inner.attend(kv, layer, spans, shape, sinks, queries, output));
        self.attended = true;
    }

    fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) {
        self.inner.copy_block(kv, from, to);
    }

    fn read_block(&mut self, kv: &Kv, id: u32, bytes: &mut [u8]) {
        self.inner.read_block(kv, id, bytes);
    }

    fn write_block(&mut self, kv: &mut Kv, id: u32, bytes: &[u8]) {
        self.inner.write_block(kv, id, bytes);
    }
}

impl Experts for Timed {
    type Routes = Routes;

    fn routes(&mut self, rows: usize, used: usize) -> Result<Routes, DeviceError> {
        self.inner.routes(rows, used)
    }

    fn route(
        &mut self,
        logits: &Tensor,
        rows: usize,
        routing: &Routing,
        bias: Option<&Tensor>,
        routes: &mut Routes,
    ) {
        self.time("routing", |inner| inner.route(logits, rows, routing, bias, routes));
    }

    fn multiply_routed<const N: usize>(
        &mut self,
        input: RoutedInput<'_, Tensor>,
        routes: &Routes,
        products: [RoutedProduct<'_, Self>; N],
    ) {
        let kind = if N == 2 { "product: experts' gate, up" } else { "product: experts' down" };
        let products = products.map(|RoutedProduct { weights, scales, biases, output }| RoutedProduct {
            weights,
            scales,
            biases,
            output,
        });
        self.time(kind, |inner| inner.multiply_routed(input, routes, products));
    }

    fn combine_routed(&mut self, input: &Tensor, routes: &Routes, output: &mut Tensor) {
        self.time("sum of experts", |inner| inner.combine_routed(input, routes, output));
    }
}
