//! The capability traits on the CPU: shapes and scratch memory here, arithmetic in `matmul`, `attention` and `ops`.

use super::{
    attention::{self, AttendArgs, AttendScratch},
    buffer::AlignedBuffer,
    experts::{self, Routes},
    isa::Isa,
    kv::{self, KvArena, KvLayout},
    matmul::{self, Finish, PackError, PackedWeight, RowsScratch, Term, WeightArena},
    ops::{self, Norm, RopeTables},
    pool::Pool,
};
use crate::backend::{
    Activation, Attention, AttentionShape, DeviceError, Experts, Heads, Input, KvFormat, KvLayer, Linear,
    Memory, Pointwise, Product, Rope, RopeId, RoutedInput, RoutedProduct, Routing, RowNorm, Span,
    WeightSource,
};

/// A row-major matrix of f32 in host memory.
#[derive(Debug)]
pub struct Tensor {
    values: AlignedBuffer<f32>,
    cols: usize,
}

impl Tensor {
    fn rows(&self, rows: usize) -> &[f32] {
        &self.values[..rows * self.cols]
    }

    fn rows_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.values[..rows * self.cols]
    }
}

/// The CPU: a thread pool, an instruction set and the scratch memory of its kernels.
pub struct CpuBackend {
    pool: Pool,
    isa: Isa,
    ropes: Vec<(Rope, RopeTables)>,
    arena: WeightArena,
    rows_scratch: RowsScratch,
    attend_scratch: AttendScratch,
}

impl CpuBackend {
    /// A backend that runs its kernels for `isa` on `pool`. All that a device has shares one: its threads are the device's.
    ///
    /// # Panics
    /// When this machine cannot run `isa`.
    pub fn new(pool: Pool, isa: Isa) -> Self {
        assert!(isa.is_supported(), "this machine cannot run {}", isa.name());
        Self {
            pool,
            isa,
            ropes: Vec::new(),
            arena: WeightArena::default(),
            rows_scratch: RowsScratch::new(),
            attend_scratch: AttendScratch::default(),
        }
    }

    /// What its kernels are compiled for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Its threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Moves the next two megabytes of weights into a huge page, from which a step reads faster; says whether there may be more
    /// to do. Takes some milliseconds: for when there is nothing else to do. See [`WeightArena`].
    pub fn settle_weights(&mut self) -> bool {
        self.arena.settle()
    }
}

impl Memory for CpuBackend {
    type Tensor = Tensor;

    fn name(&self) -> &'static str {
        super::NAME
    }

    fn tensor(&mut self, rows: usize, cols: usize) -> Result<Tensor, DeviceError> {
        let len = rows.checked_mul(cols).expect("a tensor's size overflows");
        let out_of_memory = DeviceError::OutOfMemory {
            what: "activations",
            bytes: len * size_of::<f32>(),
            backend: super::NAME,
        };
        Ok(Tensor { values: AlignedBuffer::try_zeroed(len).ok_or(out_of_memory)?, cols })
    }

    fn vector(&mut self, values: &[f32]) -> Result<Tensor, DeviceError> {
        let mut tensor = self.tensor(1, values.len())?;
        tensor.values.copy_from_slice(values);
        Ok(tensor)
    }

    fn gather_rows(&mut self, input: &Tensor, picks: &[usize], output: &mut Tensor) {
        let cols = input.cols;
        assert_eq!(cols, output.cols, "gathered rows keep their width");
        for (pick, out) in picks.iter().zip(output.rows_mut(picks.len()).chunks_exact_mut(cols)) {
            out.copy_from_slice(&input.values[pick * cols..][..cols]);
        }
    }

    fn host_rows<'t>(&mut self, tensor: &'t mut Tensor, rows: usize) -> &'t mut [f32] {
        tensor.rows_mut(rows)
    }
}

impl Linear for CpuBackend {
    type Weight = PackedWeight;

    fn reserve_weights(&mut self, bytes: usize) -> Result<(), DeviceError> {
        let out_of_memory = DeviceError::OutOfMemory { what: "weights", bytes, backend: super::NAME };
        if self.arena.reserve(bytes) { Ok(()) } else { Err(out_of_memory) }
    }

    fn weight(&mut self, source: WeightSource<'_>) -> Result<PackedWeight, DeviceError> {
        let mut weights = self.weights(&[source])?;
        Ok(weights.pop().expect("a weight for each source"))
    }

    fn weights(&mut self, sources: &[WeightSource<'_>]) -> Result<Vec<PackedWeight>, DeviceError> {
        PackedWeight::pack_all(&self.pool, self.isa, &mut self.arena, sources)
            .map_err(|(index, error)| refused(sources[index].name, error))
    }

    fn weight_bytes(&self, weight: &PackedWeight) -> usize {
        weight.bytes()
    }

    fn embed(&mut self, weight: &PackedWeight, ids: &[u32], scale: f32, output: &mut Tensor) {
        assert_eq!(output.cols, weight.cols(), "an embedded row has the weight's width");
        let rows = output.rows_mut(ids.len());
        for (id, row) in ids.iter().zip(rows.chunks_exact_mut(weight.cols())) {
            weight.decode_row(*id as usize, row);
        }
        if scale != 1.0 {
            ops::scale(&self.pool, self.isa, rows, scale);
        }
    }

    fn multiply<const N: usize>(
        &mut self,
        input: Input<'_, Tensor>,
        rows: usize,
        products: [Product<'_, Self>; N],
    ) {
        let (input, cols) = match input {
            Input::Rows(tensor) => (matmul::Input::Rows(tensor.rows(rows)), tensor.cols),
            Input::Normed(tensor, norm) => {
                (matmul::Input::Normed { rows: tensor.rows(rows), norm: norm_of(norm) }, tensor.cols)
            }
            Input::Gated { gate, up, activation } => gated(gate, up, rows, activation),
        };
        let terms = products.map(|Product { weight, scale, bias, added, output }| {
            assert_eq!(output.cols, weight.rows(), "outputs of a product");
            let finish = Finish { scale, bias: bias.map(|b| b.rows(1)), added };
            Term { weight, rows: 0..rows, finish, output: output.rows_mut(rows) }
        });
        matmul::multiply(&self.pool, self.isa, input, cols, terms, &mut self.rows_scratch);
    }
}

fn norm_of(norm: RowNorm<'_, Tensor>) -> Norm<'_> {
    Norm { weight: norm.weight.rows(1), epsilon: norm.epsilon }
}

/// The gated input of a product, and its columns.
fn gated<'a>(
    gate: &'a Tensor,
    up: &'a Tensor,
    rows: usize,
    activation: Activation,
) -> (matmul::Input<'a>, usize) {
    (matmul::Input::Gated { gate: gate.rows(rows), up: up.rows(rows), activation }, gate.cols)
}

/// Why the matrix `name` has no product here.
fn refused(name: &str, error: PackError) -> DeviceError {
    let shape = |of: &str, found, expected| DeviceError::UnsupportedShape {
        what: format!("{of} of tensor {name}"),
        found,
        backend: super::NAME,
        expected,
    };
    match error {
        PackError::WrongSize { format, rows, cols, bytes } => {
            DeviceError::WrongSize { name: name.to_owned(), format, rows, cols, found: bytes }
        }
        PackError::OutOfMemory { bytes, .. } => {
            DeviceError::OutOfMemory { what: "weights", bytes, backend: super::NAME }
        }
        PackError::Empty { rows: 0, .. } => shape("rows", 0, "at least 1 is"),
        PackError::Empty { cols, .. } => shape("columns", cols, "at least 1 is"),
        PackError::PartialBlock { format, cols } => shape(
            "columns",
            cols,
            match format.block_len() {
                256 => "multiples of 256 are, which is a block of its format",
                128 => "multiples of 128 are, which is a block of its format",
                64 => "multiples of 64 are, which is a block of its format",
                _ => "multiples of 32 are, which is a block of its format",
            },
        ),
    }
}

impl Pointwise for CpuBackend {
    fn rms_norm(&mut self, input: &Tensor, rows: usize, norm: RowNorm<'_, Tensor>, output: &mut Tensor) {
        let norm = norm_of(norm);
        assert_eq!((input.cols, output.cols), (norm.weight.len(), input.cols), "a norm keeps the width");
        ops::rms_norm(&self.pool, self.isa, input.rows(rows), norm, output.rows_mut(rows));
    }

    fn prepare_rope(&mut self, rope: &Rope) -> RopeId {
        RopeId(self.ropes.iter().position(|(known, _)| known == rope).unwrap_or_else(|| {
            let factors = (!rope.factors.is_empty()).then_some(rope.factors.as_slice());
            let (base, scale) = (f64::from(rope.base), f64::from(rope.scale));
            let tables = RopeTables::new(rope.style, rope.rotary_dim, base, scale, factors, rope.magnitude);
            self.ropes.push((rope.clone(), tables));
            self.ropes.len() - 1
        }))
    }

    fn turn_heads<const N: usize>(
        &mut self,
        heads: [Heads<'_, Tensor>; N],
        head_dim: usize,
        positions: &[usize],
        rope: Option<RopeId>,
    ) {
        let heads = heads.map(|Heads { tensor, norm }| ops::Heads {
            x: tensor.rows_mut(positions.len()),
            norm: norm.map(norm_of),
        });
        let rope = rope.map(|rope| &mut self.ropes[rope.0].1);
        ops::turn_heads(&self.pool, self.isa, heads, head_dim, positions, rope);
    }

    fn add(
        &mut self,
        target: &mut Tensor,
        source: &Tensor,
        rows: usize,
        norm: Option<RowNorm<'_, Tensor>>,
        factor: f32,
    ) {
        assert_eq!(target.cols, source.cols, "the two sides of a sum");
        let (target, source) = (target.rows_mut(rows), source.rows(rows));
        match norm {
            Some(norm) => ops::add_normed(&self.pool, self.isa, target, source, norm_of(norm), factor),
            None => ops::add(&self.pool, self.isa, target, source, factor),
        }
    }

    fn scale(&mut self, target: &mut Tensor, rows: usize, factor: f32) {
        ops::scale(&self.pool, self.isa, target.rows_mut(rows), factor);
    }

    fn scale_rows(&mut self, target: &mut Tensor, factors: &[f32]) {
        ops::scale_rows(&self.pool, self.isa, target.rows_mut(factors.len()), factors);
    }

    fn gate_rows(&mut self, target: &mut Tensor, rows: usize, gate: &Tensor) {
        assert_eq!(gate.cols, 1, "one gate a row");
        ops::gate_rows(&self.pool, self.isa, target.rows_mut(rows), gate.rows(rows));
    }

    fn soft_cap(&mut self, target: &mut Tensor, rows: usize, cap: f32) {
        ops::softcap(&self.pool, self.isa, target.rows_mut(rows), cap);
    }
}

impl Attention for CpuBackend {
    type Kv = KvArena;

    fn kv(&mut self, format: KvFormat, layers: &[KvLayer], blocks: usize) -> Result<KvArena, DeviceError> {
        KvArena::new(KvLayout::new(format, layers)?, blocks)
    }

    fn kv_block_bytes(&self, format: KvFormat, layers: &[KvLayer]) -> Result<usize, DeviceError> {
        Ok(KvLayout::new(format, layers)?.block_bytes())
    }

    fn lock_kv(&mut self, kv: &mut KvArena) -> Result<(), DeviceError> {
        kv.lock()
    }

    fn kv_layout(&self) -> &'static str {
        kv::LAYOUT
    }

    fn append(&mut self, kv: &mut KvArena, layer: usize, spans: &[Span<'_>], keys: &Tensor, values: &Tensor) {
        let rows = spans.iter().map(|s| s.rows).sum();
        attention::append(&self.pool, self.isa, kv, layer, spans, keys.rows(rows), values.rows(rows));
    }

    fn attend(
        &mut self,
        kv: &KvArena,
        layer: usize,
        spans: &[Span<'_>],
        shape: AttentionShape,
        sinks: Option<&Tensor>,
        queries: &Tensor,
        output: &mut Tensor,
    ) {
        let rows = spans.iter().map(|s| s.rows).sum();
        let args = AttendArgs {
            layer,
            heads: shape.heads,
            spans,
            q: queries.rows(rows),
            scale: shape.scale,
            window: shape.window,
            softcap: shape.soft_cap,
            sinks: sinks.map(|s| s.rows(1)),
            out: output.rows_mut(rows),
        };
        attention::attend(&self.pool, self.isa, kv, args, &mut self.attend_scratch);
    }

    fn copy_block(&mut self, kv: &mut KvArena, from: u32, to: u32) {
        kv.copy_block(from, to);
    }

    fn read_block(&mut self, kv: &KvArena, id: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(kv.block(id));
    }

    fn write_block(&mut self, kv: &mut KvArena, id: u32, bytes: &[u8]) {
        kv.block_mut(id).copy_from_slice(bytes);
    }
}

impl Experts for CpuBackend {
    type Routes = Routes;

    fn routes(&mut self, rows: usize, used: usize) -> Result<Routes, DeviceError> {
        Routes::try_new(rows, used).ok_or(DeviceError::OutOfMemory {
            what: "the routes of experts",
            bytes: Routes::bytes(rows, used),
            backend: super::NAME,
        })
    }

    fn route(
        &mut self,
        logits: &Tensor,
        rows: usize,
        routing: &Routing,
        bias: Option<&Tensor>,
        routes: &mut Routes,
    ) {
        assert_eq!(logits.cols, routing.experts, "a logit for each expert");
        experts::route(&self.pool, self.isa, logits.rows(rows), routing, bias.map(|b| b.rows(1)), routes);
    }

    fn multiply_routed<const N: usize>(
        &mut self,
        input: RoutedInput<'_, Tensor>,
        routes: &Routes,
        products: [RoutedProduct<'_, Self>; N],
    ) {
        let (input, cols) = match input {
            RoutedInput::Rows(tensor) => {
                let rows = tensor.rows(routes.rows());
                (matmul::Input::Picked { rows, picks: routes.sources() }, tensor.cols)
            }
            RoutedInput::Gated { gate, up, activation } => gated(gate, up, routes.pairs(), activation),
        };
        let terms = products.into_iter().flat_map(|RoutedProduct { weights, scales, biases, output }| {
            let cols = output.cols;
            assert!(biases.is_none_or(|b| b.cols == cols), "a bias has the outputs' width");
            let mut rest = output.rows_mut(routes.pairs());
            routes.runs().iter().map(move |run| {
                let weight = &weights[run.expert];
                assert_eq!(cols, weight.rows(), "outputs of a product");
                let finish = Finish {
                    scale: scales.map_or(1.0, |scales| scales.values[run.expert]),
                    bias: biases.map(|biases| &biases.values[run.expert * cols..][..cols]),
                    added: None,
                };
                let output =
                    rest.split_off_mut(..run.pairs.len() * cols).expect("runs have all pairs in order");
                Term { weight, rows: run.pairs.clone(), finish, output }
            })
        });
        matmul::multiply(&self.pool, self.isa, input, cols, terms, &mut self.rows_scratch);
    }

    fn combine_routed(&mut self, input: &Tensor, routes: &Routes, output: &mut Tensor) {
        assert_eq!(input.cols, output.cols, "combined rows keep their width");
        let input = input.rows(routes.pairs());
        experts::combine(&self.pool, self.isa, routes, output.cols, input, output.rows_mut(routes.rows()));
    }
}
