//! What an algorithm may ask of a device: small capability traits with parameter structs.
//!
//! The engine writes each model algorithm once, generic over [`Backend`]; no method knows a model's name and every
//! dimension is a parameter. Operations on one backend happen in the order in which they were called; only
//! [`Memory::host_rows`] waits for them. A tensor is a row-major matrix of f32 with a fixed number of columns; an
//! operation works on its first `rows` rows.
//!
//! Invariant: a row of an output depends on that row of the inputs (and, for attention, on its own sequence) alone, to
//! the bit: never on how many rows are beside it, on the thread count or on the instruction set.

mod experts;
mod linear;

pub use experts::{
    Experts, MAX_EXPERTS, RoutedInput, RoutedProduct, Routing, RoutingScores, SMALLEST_WEIGHT_SUM,
};
pub use linear::{Input, Linear, Product, WeightSource};

use crate::blocks::BlockFormat;

/// Why a device refused. The operands are in the variant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DeviceError {
    /// Bytes that do not hold `rows` x `cols` weights.
    #[error("tensor {name}: {found} bytes do not hold {rows} rows of {cols} {format} weights")]
    WrongSize {
        /// Tensor name.
        name: String,
        /// Its format.
        format: BlockFormat,
        /// Rows announced.
        rows: usize,
        /// Columns announced.
        cols: usize,
        /// Bytes given.
        found: usize,
    },
    /// Memory that the system does not give.
    #[error("the {backend} backend gets no {bytes} bytes for {what}; ask for less")]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// Backend name.
        backend: &'static str,
    },
    /// Memory that the system does not keep from being swapped.
    #[error(
        "the {backend} backend cannot lock {bytes} bytes of keys and values in memory: {reason}; this process may lock \
         {limit} bytes (RLIMIT_MEMLOCK: `ulimit -l`, LimitMEMLOCK of a systemd unit). Raise that, ask for less, or do \
         without the lock"
    )]
    NotLocked {
        /// How much.
        bytes: usize,
        /// The system's reason.
        reason: &'static str,
        /// The process's limit.
        limit: u64,
        /// Backend name.
        backend: &'static str,
    },
    /// A shape that no kernel serves.
    #[error("{what}: {found} is not supported by the {backend} backend; {expected}")]
    UnsupportedShape {
        /// Which dimension, of what.
        what: String,
        /// Its value.
        found: usize,
        /// Backend name.
        backend: &'static str,
        /// What would work.
        expected: &'static str,
    },
}

/// Device memory for activations.
pub trait Memory {
    /// A matrix of f32 in device memory.
    type Tensor: Send;

    /// Name for messages and metrics, e.g. `cpu`.
    fn name(&self) -> &'static str;

    /// A zeroed tensor with room for `rows` rows.
    ///
    /// # Errors
    /// There is no memory for it.
    fn tensor(&mut self, rows: usize, cols: usize) -> Result<Self::Tensor, DeviceError>;

    /// A one-row tensor that holds `values`: norm weights, biases, frequency factors.
    ///
    /// # Errors
    /// There is no memory for it.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Tensor, DeviceError>;

    /// Copies the rows `picks` of `input` to the first rows of `output`.
    fn gather_rows(&mut self, input: &Self::Tensor, picks: &[usize], output: &mut Self::Tensor);

    /// Waits for the work on `tensor` and gives its first `rows` rows in host memory; the caller may change them.
    fn host_rows<'t>(&mut self, tensor: &'t mut Self::Tensor, rows: usize) -> &'t mut [f32];
}

/// Which pairs of a head rotary embedding turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Dimension `i` with `i + rotary_dim / 2`.
    Neox,
    /// Dimension `2i` with `2i + 1`.
    Interleaved,
}

/// Rotary embedding: pair `i` at position `p` turns by `p * scale * base^(-2i / rotary_dim) / factors[i]`, and is then
/// multiplied by `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which dimensions form a pair.
    pub style: RopeStyle,
    /// Dimensions that turn, from the head's first; the rest stay.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Linear position scale (1 / scaling factor).
    pub scale: f32,
    /// Divisor of each pair's frequency; empty for none.
    pub factors: Vec<f32>,
    /// Factor on every turned value (yarn, longrope); 1 for plain rope.
    pub magnitude: f32,
}

/// A rotary embedding that a backend has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeId(pub(crate) usize);

/// How a gated feed-forward network brings gate `g` and up `u` together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `g / (1 + e^-g) * u`
    Silu,
    /// `g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g^3))) * u`: the tanh approximation of GELU.
    GeluTanh,
    /// `g' / (1 + e^(-alpha g')) * (u' + 1)` with `g' = min(g, limit)` and `u'` clamped to `-limit..limit`: gpt-oss (ggml's
    /// `swiglu_oai`).
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
    },
}

/// Root-mean-square norm: `x / sqrt(mean(x^2) + epsilon) * weight` over each run of as many values as `weight` has columns:
/// a row, or each of its heads.
pub struct RowNorm<'a, T> {
    /// A factor a column, one row.
    pub weight: &'a T,
    /// Added to the mean of the squares.
    pub epsilon: f32,
}

/// One tensor of a [`Pointwise::turn_heads`].
pub struct Heads<'a, T> {
    /// Rows of some heads.
    pub tensor: &'a mut T,
    /// What they are normed with first: each head, or the row as a whole.
    pub norm: Option<RowNorm<'a, T>>,
}

/// Element-wise and row-wise operations.
pub trait Pointwise: Memory {
    /// Root-mean-square norm of each row.
    fn rms_norm(
        &mut self,
        input: &Self::Tensor,
        rows: usize,
        norm: RowNorm<'_, Self::Tensor>,
        output: &mut Self::Tensor,
    );

    /// Prepares a rotary embedding; the same one twice gives the same id.
    fn prepare_rope(&mut self, rope: &Rope) -> RopeId;

    /// Brings queries and keys to where attention wants them: each tensor's heads of `head_dim` are normed, if it has a norm,
    /// and turned, if there is a rope. `positions` has one position a row.
    fn turn_heads<const N: usize>(
        &mut self,
        heads: [Heads<'_, Self::Tensor>; N],
        head_dim: usize,
        positions: &[usize],
        rope: Option<RopeId>,
    );

    /// `target += factor * norm(source)`; without a norm `target += factor * source`.
    fn add(
        &mut self,
        target: &mut Self::Tensor,
        source: &Self::Tensor,
        rows: usize,
        norm: Option<RowNorm<'_, Self::Tensor>>,
        factor: f32,
    );

    /// `target *= factor`.
    fn scale(&mut self, target: &mut Self::Tensor, rows: usize, factor: f32);

    /// `target[r] *= factors[r]`: one factor a row.
    fn scale_rows(&mut self, target: &mut Self::Tensor, factors: &[f32]);

    /// `target[r] *= 1 / (1 + e^-gate[r])`: one gate a row, `gate` has one column.
    fn gate_rows(&mut self, target: &mut Self::Tensor, rows: usize, gate: &Self::Tensor);

    /// `target = cap * tanh(target / cap)`.
    fn soft_cap(&mut self, target: &mut Self::Tensor, rows: usize, cap: f32);
}

/// Tokens of one KV block.
pub const KV_BLOCK_TOKENS: usize = 64;

/// How one side of the cache, keys or values, is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvCodec {
    /// i16 codes with one f32 scale a token and head; exact integer products.
    I16,
    /// IEEE half floats with f32 products. A value beyond 65504 makes the rows that see it NaN.
    F16,
    /// i8 codes in groups of 64 dimensions with one f16 scale a token, head and group; exact integer products. Half the
    /// bytes and far less accurate, keys more so than values.
    Q8G64,
}

impl KvCodec {
    /// Every codec.
    pub const ALL: [Self; 3] = [Self::I16, Self::F16, Self::Q8G64];

    /// The name used in configuration and fingerprints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I16 => "i16",
            Self::F16 => "f16",
            Self::Q8G64 => "q8g64",
        }
    }
}

/// How keys and values are kept, each in its own way. Written as one name for both, `i16`, or as keys, a slash and
/// values: `i16/q8g64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvFormat {
    /// How keys are kept.
    pub keys: KvCodec,
    /// How values are kept.
    pub values: KvCodec,
}

impl KvFormat {
    /// The default: nearest to f32 on the models that were measured.
    pub const I16: Self = Self::both(KvCodec::I16);
    /// Half floats.
    pub const F16: Self = Self::both(KvCodec::F16);
    /// Half the bytes.
    pub const Q8G64: Self = Self::both(KvCodec::Q8G64);

    /// Keys and values in the same way.
    pub const fn both(codec: KvCodec) -> Self {
        Self { keys: codec, values: codec }
    }

    /// Every pair.
    pub fn all() -> impl Iterator<Item = Self> {
        KvCodec::ALL.into_iter().flat_map(|keys| KvCodec::ALL.map(|values| Self { keys, values }))
    }
}

impl Default for KvFormat {
    fn default() -> Self {
        Self::I16
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.keys == self.values {
            return f.pad(self.keys.name());
        }
        f.pad(&format!("{}/{}", self.keys.name(), self.values.name()))
    }
}

/// A KV format that is not known.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name:?} is no KV format; i16, f16 or q8g64, or two of them as KEYS/VALUES such as i16/q8g64, work")]
pub struct UnknownKvFormat {
    /// What was given.
    pub name: String,
}

impl std::str::FromStr for KvFormat {
    type Err = UnknownKvFormat;
    fn from_str(text: &str) -> Result<Self, UnknownKvFormat> {
        let codec = |name: &str| KvCodec::ALL.into_iter().find(|codec| codec.name() == name);
        let (keys, values) = text.split_once('/').unwrap_or((text, text));
        match (codec(keys), codec(values)) {
            (Some(keys), Some(values)) => Ok(Self { keys, values }),
            _ => Err(UnknownKvFormat { name: text.to_owned() }),
        }
    }
}

/// What a layer keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// KV heads.
    pub kv_heads: usize,
    /// Dimensions of a K head.
    pub k_dim: usize,
    /// Dimensions of a V head.
    pub v_dim: usize,
}

/// One sequence's rows in the batch.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Row of the batch that holds its first token.
    pub first_row: usize,
    /// Its tokens in the batch.
    pub rows: usize,
    /// Position in the sequence of the first of them.
    pub position: usize,
    /// The sequence's block table from position 0, covering `position + rows`. Blocks that every row's window has left
    /// behind may be [`u32::MAX`].
    pub blocks: &'a [u32],
}

/// What the rows of one attention layer see.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads; a multiple of the layer's KV heads.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// A row at position `p` sees keys above `p - window`; `None`: all.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` on the scores.
    pub soft_cap: Option<f32>,
}

/// Paged keys and values.
pub trait Attention: Memory {
    /// An arena of blocks; a block holds 64 tokens of every layer, contiguous.
    type Kv: Send;

    /// An arena of `blocks` blocks.
    ///
    /// # Errors
    /// A head dimension that no kernel serves, or no memory for so many blocks.
    fn kv(&mut self, format: KvFormat, layers: &[KvLayer], blocks: usize) -> Result<Self::Kv, DeviceError>;

    /// Bytes of one block of such an arena.
    ///
    /// # Errors
    /// A head dimension that no kernel serves.
    fn kv_block_bytes(&self, format: KvFormat, layers: &[KvLayer]) -> Result<usize, DeviceError>;

    /// Keeps the arena's host memory from being swapped; it is taken at once and not as it is used.
    ///
    /// # Errors
    /// The system refuses.
    fn lock_kv(&mut self, kv: &mut Self::Kv) -> Result<(), DeviceError>;

    /// Names how a block's bytes are laid out, with a version and the byte order: a block may go from one arena to another
    /// of the same format and layers where this is the same. For fingerprints.
    fn kv_layout(&self) -> &'static str;

    /// Writes each row's key and value (after rope) at its position.
    fn append(
        &mut self,
        kv: &mut Self::Kv,
        layer: usize,
        spans: &[Span<'_>],
        keys: &Self::Tensor,
        values: &Self::Tensor,
    );

    /// Causal attention of every row over its own sequence: a row at position `p` sees keys up to and with `p`. `sinks`
    /// (one row) has a logit for each head, which takes part in the head's softmax without a value.
    #[allow(clippy::too_many_arguments, reason = "what is the model's is in `shape`, the rest are tensors")]
    fn attend(
        &mut self,
        kv: &Self::Kv,
        layer: usize,
        spans: &[Span<'_>],
        shape: AttentionShape,
        sinks: Option<&Self::Tensor>,
        queries: &Self::Tensor,
        output: &mut Self::Tensor,
    );

    /// Copies one block (copy on write of a shared, partly filled block).
    fn copy_block(&mut self, kv: &mut Self::Kv, from: u32, to: u32);

    /// Waits for the work on block `id` and copies it to host memory; `bytes` has the size of a block.
    fn read_block(&mut self, kv: &Self::Kv, id: u32, bytes: &mut [u8]);

    /// Copies to block `id` what [`Self::read_block`] gave of a block of the same format and layers.
    fn write_block(&mut self, kv: &mut Self::Kv, id: u32, bytes: &[u8]);
}

/// A device that can run every model algorithm of the engine.
pub trait Backend: Linear + Pointwise + Attention + Experts + Send {}
impl<T: Linear + Pointwise + Attention + Experts + Send> Backend for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_names_parse_back() {
        for format in KvFormat::all() {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert_eq!(KvFormat::all().count(), 9);
        assert_eq!("i16/q8g64".parse(), Ok(KvFormat { keys: KvCodec::I16, values: KvCodec::Q8G64 }));
        assert_eq!(KvFormat::Q8G64.to_string(), "q8g64");
        for bad in ["q8", "", "/", "i16/", "/f16", "i16/f16/f16", "I16"] {
            let error = bad.parse::<KvFormat>().expect_err("not a format").to_string();
            assert!(error.starts_with(&format!("{bad:?} is no KV format; i16, f16 or q8g64")), "{error}");
        }
    }
}
