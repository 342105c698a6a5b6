//! The block formats of GGUF tensors: sizes and ids. Decoding lives in `blocks/decode.rs`.
//!
//! Source of ids and layouts: the GGUF specification and `ggml-common.h` of ggml (facts only).

mod decode;
pub use decode::decode_row;
pub(crate) use decode::{MAX_BLOCK_LEN, Scales, six_bit_pair, unpack_codes};

/// How a tensor's numbers are packed. A block is the smallest unit: `block_len` weights in `block_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names that files and users know")]
pub enum BlockFormat {
    /// 32-bit floats
    F32,
    /// 16-bit IEEE floats
    F16,
    /// bfloat16
    BF16,
    /// 4 bits, one scale per 32
    Q4_0,
    /// 4 bits, one scale and one minimum per 32
    Q4_1,
    /// 5 bits, one scale per 32
    Q5_0,
    /// 5 bits, one scale and one minimum per 32
    Q5_1,
    /// 8 bits, one scale per 32
    Q8_0,
    /// 4 bits, 6-bit scales and minima per 32 inside 256
    Q4_K,
    /// 5 bits, 6-bit scales and minima per 32 inside 256
    Q5_K,
    /// 6 bits, 8-bit scales per 16 inside 256
    Q6_K,
}

impl BlockFormat {
    /// Every format that can be decoded.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Weights in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of a row of `cols` weights; `None` when `cols` is not a whole number of blocks or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The type number of this format in a GGUF tensor record.
    pub const fn ggml_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    /// The format of a GGUF type number, if it can be decoded.
    pub fn from_ggml_type(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.ggml_type() == id)
    }

    /// The name that files and users know, e.g. `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }
}

impl std::fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
