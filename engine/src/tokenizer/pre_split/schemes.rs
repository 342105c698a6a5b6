//! The pre-tokenizers by name: which rules split the texts of which family of models.
//!
//! The rules are the alternatives of the regular expressions of the models' own `tokenizer.json`, as they are cited
//! in llama.cpp's `llama-vocab.cpp` (as vendored in llama-cpp-python 0.3.36), from where the names are, too.
//! llama.cpp computes some of them only roughly: it does not tell upper from lower case outside ASCII, nor sees
//! combining marks, in `tekken`, `gpt-4o` and their like. Here they are as the models were trained. What differs is
//! listed in `testdata/tokenizers/README.md`.
//!
//! Where an expression says `(?i:'s)`, only ASCII letters are meant.

use super::{Cut, Scheme, Step};

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
const CONTRACTION: &str = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]";
const SMALL_CONTRACTION: &str = "'s|'t|'re|'ve|'m|'ll|'d";
const WORD: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+";
const SYMBOLS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";
const SYMBOLS_AND_SLASHES: &str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*";
const LINES: &str = r"\s*[\r\n]+";
/// All spaces at the end of a text, else all but the last, which belongs to the word after it.
const LEADING_SPACES: &str = r"\s+(?!\S)";
const SPACES: &str = r"\s+";

const GPT2: Step = Step::Split(&[
    SMALL_CONTRACTION,
    r" ?\p{L}+",
    r" ?\p{N}+",
    r" ?[^\s\p{L}\p{N}]+",
    LEADING_SPACES,
    SPACES,
]);
const EACH_NUMBER: Step = Step::Split(&[r"\p{N}"]);
const THREE_NUMBERS: Step = Step::Split(&[r"\p{N}{1,3}"]);
const THREE_DIGITS: Step = Step::Split(&["[0-9][0-9][0-9]"]);

const LLAMA3: Step = Step::Split(&[CONTRACTION, WORD, r"\p{N}{1,3}", SYMBOLS, LINES, LEADING_SPACES, SPACES]);
const QWEN2: Step = Step::Split(&[CONTRACTION, WORD, r"\p{N}", SYMBOLS, LINES, LEADING_SPACES, SPACES]);

/// Words that change from capitals to small letters at most once, with a contraction behind.
const CASED_WORDS: [&str; 2] = [
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
    ),
];
const GPT4O: Step = Step::Split(&[
    CASED_WORDS[0],
    CASED_WORDS[1],
    r"\p{N}{1,3}",
    SYMBOLS_AND_SLASHES,
    LINES,
    LEADING_SPACES,
    SPACES,
]);
const TEKKEN: Step = Step::Split(&[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}",
    SYMBOLS_AND_SLASHES,
    LINES,
    LEADING_SPACES,
    SPACES,
]);
const KIMI_K2: Step = Step::Split(&[
    r"\p{Han}+",
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
    ),
    r"\p{N}{1,3}",
    SYMBOLS,
    LINES,
    LEADING_SPACES,
    SPACES,
]);

/// Of DeepSeek V3 and those after it: one sign before ASCII letters; marks are letters; punctuation is named.
const DEEPSEEK_WORDS: [&str; 3] = [
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
];
const DEEPSEEK3: Step =
    Step::Split(&[DEEPSEEK_WORDS[0], DEEPSEEK_WORDS[1], DEEPSEEK_WORDS[2], LINES, LEADING_SPACES, SPACES]);
const HAN_AND_KANA: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const DEEPSEEK_CJK: Step = Step::Split(&[r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+"]);
/// Letters that have case, with a space before.
const DEEPSEEK_CASED: &str = concat!(
    r"\s?[",
    r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}",
    r"\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}",
    r"\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}",
    r"\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}",
    r"\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}",
    r"\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}",
    r"\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}",
    r"\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}",
    r"\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
    r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}",
    r"\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}",
    r"\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
    r"]+"
);

const BLOOM: Step = Step::Split(&[r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+"]);

/// A scheme that neither takes whole words nor begins texts with BOS.
const fn plain(names: &'static [&'static str], steps: &'static [Step]) -> Scheme {
    Scheme { names, steps, whole_words: false, add_bos: false }
}

const fn whole_words(names: &'static [&'static str], steps: &'static [Step], add_bos: bool) -> Scheme {
    Scheme { names, steps, whole_words: true, add_bos }
}

/// All schemes. To add a model, add its name here, or a scheme with the steps of its expressions.
pub(super) static SCHEMES: &[Scheme] = &[
    plain(
        &[super::DEFAULT_NAME],
        &[Step::Split(&[r"[\p{P}\$\+<=>\^~\|]+"]), GPT2, Step::Split(&[r"\p{N}+"]), THREE_DIGITS],
    ),
    plain(
        &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ],
        &[GPT2],
    ),
    plain(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[EACH_NUMBER, GPT2],
    ),
    plain(&["falcon"], &[Step::Split(&[r"[\p{P}\$\+<=>\^~\|`]+"]), GPT2, THREE_DIGITS]),
    whole_words(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
        true,
    ),
    plain(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    whole_words(&["glm4", "glm5"], &[LLAMA3], false),
    plain(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "stablelm2",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    plain(
        &["qwen35"],
        &[Step::Split(&[
            CONTRACTION,
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            LINES,
            LEADING_SPACES,
            SPACES,
        ])],
    ),
    plain(&["ufakzeka"], &[Step::Split(&[WORD, r"\p{N}", SYMBOLS, LINES, LEADING_SPACES, SPACES])]),
    plain(&["laguna"], &[Step::Split(&[r"[^\n]+", r"\n+"]), QWEN2]),
    plain(
        &["seed-coder"],
        &[Step::Split(&[
            CONTRACTION,
            WORD,
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}\r\n]+",
            LINES,
            LEADING_SPACES,
            SPACES,
        ])],
    ),
    plain(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Step::Split(&[
            "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
            WORD,
            r"\p{N}",
            SYMBOLS,
            r"\s*[\r\n]",
            LEADING_SPACES,
            SPACES,
        ])],
    ),
    plain(
        &["exaone-moe"],
        &[Step::Split(&[
            CONTRACTION,
            r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            r"\s*[\r\n]",
            LEADING_SPACES,
            SPACES,
        ])],
    ),
    whole_words(
        &["minicpm5"],
        &[
            THREE_NUMBERS,
            Step::Split(&[CONTRACTION, WORD, r"\p{N}+", SYMBOLS, LINES, LEADING_SPACES, SPACES]),
        ],
        false,
    ),
    plain(
        &["jais-2"],
        &[Step::Split(&[
            CONTRACTION,
            WORD,
            r"\p{N}{1,3}",
            SYMBOLS,
            LINES,
            r"\s{512}(?!\S)",
            r"\s{256}(?!\S)",
            r"\s{128}(?!\S)",
            r"\s{64}(?!\S)",
            r"\s{32}(?!\S)",
            r"\s{16}(?!\S)",
            r"\s{8}(?!\S)",
            r"\s{4}(?!\S)",
            r"\s{1,2}(?!\S)",
            r"\s",
        ])],
    ),
    plain(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    whole_words(&["granite-embed-multi-97m"], &[GPT4O], false),
    whole_words(&["tekken"], &[TEKKEN], true),
    plain(&["kimi-k2"], &[KIMI_K2]),
    whole_words(
        &["youtu"],
        &[
            Step::Split(&[
                r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
                concat!(
                    r"[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}",
                    r"\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+"
                ),
                r"[\u{3105}-\u{312F}]+",
                HAN_AND_KANA,
            ]),
            Step::Split(&[
                CASED_WORDS[0],
                CASED_WORDS[1],
                r"\p{N}",
                SYMBOLS_AND_SLASHES,
                LINES,
                LEADING_SPACES,
                SPACES,
            ]),
        ],
        false,
    ),
    plain(
        &["tiny_aya", "cohere2moe"],
        &[
            Step::Threes { digits: r"\d", before_first: Cut::Always, after_last: true, no_word_after: true },
            GPT4O,
        ],
    ),
    plain(
        &["deepseek-llm"],
        &[
            Step::Split(&[r"[\r\n]"]),
            Step::Split(&[DEEPSEEK_CASED]),
            Step::Split(&[
                r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            ]),
            Step::Split(&[r"\s+$"]),
            DEEPSEEK_CJK,
            Step::Split(&[r"\p{N}+"]),
        ],
    ),
    plain(
        &["deepseek-coder"],
        &[
            Step::Split(&[r"[\r\n]"]),
            Step::Split(&[r"\s?\p{L}+"]),
            Step::Split(&[r"\s?\p{P}+"]),
            DEEPSEEK_CJK,
            EACH_NUMBER,
        ],
    ),
    plain(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[THREE_NUMBERS, Step::Split(&[HAN_AND_KANA]), DEEPSEEK3],
    ),
    plain(
        &["spark2_5"],
        &[
            THREE_NUMBERS,
            Step::Split(&[HAN_AND_KANA]),
            Step::Split(&[
                DEEPSEEK_WORDS[0],
                DEEPSEEK_WORDS[1],
                r" ?[\p{P}\p{S}]+",
                r"[\r\n]",
                LEADING_SPACES,
                SPACES,
            ]),
            EACH_NUMBER,
        ],
    ),
    plain(
        &["afmoe"],
        &[
            Step::Threes {
                digits: r"\p{N}",
                before_first: Cut::Never,
                after_last: true,
                no_word_after: false,
            },
            // U+8C48 begins the third range in llama.cpp, too: U+F900 after a normalisation of the source.
            Step::Split(&[concat!(
                r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}",
                r"\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}",
                r"\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
            )]),
            DEEPSEEK3,
        ],
    ),
    plain(
        &["superbpe"],
        &[
            Step::Split(&[r"\p{N}+"]),
            Step::Threes {
                digits: r"\d",
                before_first: Cut::IfThree,
                after_last: false,
                no_word_after: false,
            },
        ],
    ),
    plain(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    plain(&["viking"], &[BLOOM, EACH_NUMBER]),
    Scheme {
        names: &["chameleon"],
        steps: &[
            Step::Split(&["<sentinel:[0-9]+>"]),
            Step::Split(&["IMGIMG[A-I]{1,4}Z"]),
            Step::Split(&[r"[\t\n]", "    ", "  "]),
            EACH_NUMBER,
            Step::Split(&[r"[\p{P}!-/:-@\[-`{-~]"]),
            GPT2,
        ],
        whole_words: false,
        add_bos: true,
    },
];
