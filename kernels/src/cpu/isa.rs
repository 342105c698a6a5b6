//! Which instruction set the kernels use: chosen once at start, overridable so that each is tested on one machine.

/// An instruction set with its own kernels. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust: the twin that the others are tested against, and what other architectures run.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The same with BF16, which has its own kernel for weights in that format.
    Avx512Bf16,
}

impl Isa {
    /// Every instruction set that this machine can run, slowest first.
    pub fn available() -> Vec<Self> {
        let all = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Bf16];
        all.into_iter().filter(|isa| isa.is_supported()).collect()
    }

    /// The fastest one that this machine can run.
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar)
    }

    /// Whether this machine can run it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_supported(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        match self {
            Self::Scalar => true,
            Self::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
            Self::Avx512 => {
                Self::Avx2.is_supported()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
            Self::Avx512Bf16 => Self::Avx512.is_supported() && has!("avx512bf16"),
        }
    }

    /// Whether this machine can run it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_supported(self) -> bool {
        self == Self::Scalar
    }

    /// The name used in configuration, logs and `--isa`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
        }
    }
}

impl std::str::FromStr for Isa {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "scalar" => Ok(Self::Scalar),
            "avx2" => Ok(Self::Avx2),
            "avx512" => Ok(Self::Avx512),
            "avx512bf16" => Ok(Self::Avx512Bf16),
            _ => Err(format!("unknown instruction set {s:?}: scalar, avx2, avx512 or avx512bf16")),
        }
    }
}
