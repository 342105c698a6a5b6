//! The block formats of GGUF tensors: sizes and ids. Decoding lives in `blocks/decode.rs`, with a file for each kind of format.
//!
//! Source of ids and layouts: the GGUF specification and `ggml-common.h` of ggml (facts only).

mod decode;
mod fp4;
pub(crate) mod grids;
mod iq;
mod k_quants;
mod legacy;
mod ternary;

pub use decode::decode_row;
pub(crate) use decode::{MAX_BLOCK_LEN, Scales, half as widened_half, scales, six_bit_scale, unpack_codes};
pub(crate) use fp4::{half_of_power, half_of_small_float, plain_small_float};
pub(crate) use k_quants::six_bit_pair;

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
    /// 1 bit, a sign, one scale per 128
    Q1_0,
    /// 2 bits (-1 to 2), one scale per 64
    Q2_0,
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
    /// 2 bits, 4-bit scales and minima per 16 inside 256
    Q2_K,
    /// 3 bits, 6-bit scales per 16 inside 256
    Q3_K,
    /// 4 bits, 6-bit scales and minima per 32 inside 256
    Q4_K,
    /// 5 bits, 6-bit scales and minima per 32 inside 256
    Q5_K,
    /// 6 bits, 8-bit scales per 16 inside 256
    Q6_K,
    /// eights of -1, 0 and 1 out of 2048, shifted by an eighth; 3-bit scales per 32 inside 256
    IQ1_S,
    /// eights as in `IQ1_S`; 3-bit scales per 16 inside 256
    IQ1_M,
    /// eights of magnitudes out of 256, and signs; 4-bit scales per 32 inside 256
    IQ2_XXS,
    /// eights of magnitudes out of 512, and signs; 4-bit scales per 16 inside 256
    IQ2_XS,
    /// eights of magnitudes out of 1024, and signs; 4-bit scales per 16 inside 256
    IQ2_S,
    /// fours of magnitudes out of 256, and signs; 4-bit scales per 32 inside 256
    IQ3_XXS,
    /// fours of magnitudes out of 512, and signs; 4-bit scales per 32 inside 256
    IQ3_S,
    /// 4 bits that choose one of sixteen uneven values, one scale per 32
    IQ4_NL,
    /// values as in `IQ4_NL`; 6-bit scales per 32 inside 256
    IQ4_XS,
    /// -1, 0 and 1, five in a byte, one scale per 256
    TQ1_0,
    /// -1, 0 and 1 in 2 bits, one scale per 256
    TQ2_0,
    /// 4-bit floats, a power of two per 32
    MXFP4,
    /// 4-bit floats, an 8-bit float scale per 16 inside 64
    NVFP4,
}

impl BlockFormat {
    /// Every format that can be decoded.
    pub const ALL: [Self; 28] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q1_0,
        Self::Q2_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ1_S,
        Self::IQ1_M,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::MXFP4,
        Self::NVFP4,
    ];

    /// Name, type number, weights of a block, bytes of a block.
    const fn facts(self) -> (&'static str, u32, usize, usize) {
        match self {
            Self::F32 => ("F32", 0, 1, 4),
            Self::F16 => ("F16", 1, 1, 2),
            Self::Q4_0 => ("Q4_0", 2, 32, 18),
            Self::Q4_1 => ("Q4_1", 3, 32, 20),
            Self::Q5_0 => ("Q5_0", 6, 32, 22),
            Self::Q5_1 => ("Q5_1", 7, 32, 24),
            Self::Q8_0 => ("Q8_0", 8, 32, 34),
            Self::Q2_K => ("Q2_K", 10, 256, 84),
            Self::Q3_K => ("Q3_K", 11, 256, 110),
            Self::Q4_K => ("Q4_K", 12, 256, 144),
            Self::Q5_K => ("Q5_K", 13, 256, 176),
            Self::Q6_K => ("Q6_K", 14, 256, 210),
            Self::IQ2_XXS => ("IQ2_XXS", 16, 256, 66),
            Self::IQ2_XS => ("IQ2_XS", 17, 256, 74),
            Self::IQ3_XXS => ("IQ3_XXS", 18, 256, 98),
            Self::IQ1_S => ("IQ1_S", 19, 256, 50),
            Self::IQ4_NL => ("IQ4_NL", 20, 32, 18),
            Self::IQ3_S => ("IQ3_S", 21, 256, 110),
            Self::IQ2_S => ("IQ2_S", 22, 256, 82),
            Self::IQ4_XS => ("IQ4_XS", 23, 256, 136),
            Self::IQ1_M => ("IQ1_M", 29, 256, 56),
            Self::BF16 => ("BF16", 30, 1, 2),
            Self::TQ1_0 => ("TQ1_0", 34, 256, 54),
            Self::TQ2_0 => ("TQ2_0", 35, 256, 66),
            Self::MXFP4 => ("MXFP4", 39, 32, 17),
            Self::NVFP4 => ("NVFP4", 40, 64, 36),
            Self::Q1_0 => ("Q1_0", 41, 128, 18),
            Self::Q2_0 => ("Q2_0", 42, 64, 18),
        }
    }

    /// Weights in a block.
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.facts().3
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
        self.facts().1
    }

    /// The format of a GGUF type number, if it can be decoded.
    pub fn from_ggml_type(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.ggml_type() == id)
    }

    /// The name that files and users know, e.g. `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }
}

impl std::fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
