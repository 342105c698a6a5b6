"""Makes the vocabularies of this folder and the ids that other engines give for the same texts.

Needs Python with the packages gguf, llama-cpp-python 0.3.36, protobuf, sentencepiece and tokenizers. Run in this folder.
"""
import ctypes, io, json, random

import gguf
import sentencepiece
from llama_cpp import llama_cpp as llama
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

# What texts are made of: whatever the rules of some pre-tokenizer tell apart.
PIECES = (
    "a b c s t x z A B Z S T É é ß ñ Ñ ǅ ʰ ª д Д Ж ж λ Σ 字 漢 汉 々 〇 か カ ー ゙ ・ 가 한 ㄱ ㅏ ㄅ ก ้ ไ ท ม क ि ् ष ন া ع ر ـ ٣ ۴ ؟ ، ۔ । ॥ ७ "
    "' 's 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'LL 'D ’s ` \" ! ? . , ; : - _ — … ( ) [ ] { } / \\ | < > = + * & ^ ~ $ # @ % € £ © ™ ± × "
    "0 1 2 3 9 12 123 1234 12345 1234567 ½ ² Ⅷ ① １ 三 the The THE HTMLParser parseXML camelCase don't DON'T it's we'LL x1 1x aaa AAAA zzz "
    "http:// a/b IMGIMGAAZ <sentinel:12> ！ ， 。 、 「 」 “ ” ‘ ’ ～ ！？ 🙂 👨‍👩‍👧 👍🏽 🇩🇪 𝔘 𐐀 𐐨 𠀀 𪜀 é à ö ̈ ́ ͏ ﬁ Å Ω ℵ ℝ"
).split(" ")
SPACES = [" ", " ", " ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", " \n"] + list(
    "\u00a0\u2003\u3000\u2028\u2029\u0085\v\f\u200b\u200d\ufeff\u00ad\x01\x1c\x1f\x7f\x80\ufffd\ue000\u0378\U0010ffff\u180e\u1680"
)
WORDS = (
    "the cat sat on a mat and ran ﬁne ﬂow Ⅷ ① ½ Ｆｕｌｌ été naïve Ünder straße 漢字 かな ｶﾅ 한국어 привет мир שלום سلام नमस्ते ไทย 🙂 "
    "hello, world! don't e\u0301 ™ 1234 5678"
).split(" ")


def text(rng):
    out = []
    for _ in range(rng.choice([1, 2, 3, 4, 6, 8, 12, 20])):
        r = rng.random()
        piece = rng.choice(SPACES[:12] if r < 0.3 else SPACES if r < 0.4 else PIECES)
        out.append(piece * rng.randrange(2, 5) if rng.random() < 0.15 else piece)
    return "".join(out) + (rng.choice(SPACES) * rng.randrange(1, 6) if rng.random() < 0.1 else "")


def sentence(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 12)))


# The expressions of the models' own tokenizer.json.
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
NOT_HAN = r"&&[^\p{Han}]]"
END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"
CJK = "[一-龥ࠀ-一가-\ud7ff]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


def cased(contraction):
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{UPPER}*{LOWER}+{contraction}|{start}{UPPER}+{LOWER}*{contraction}"


def words(numbers):
    return CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + END


GPT4O = cased(CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END
# Kinds for which llama.cpp computes something else, and what the models were trained with.
EXPRESSIONS = {
    "gpt-4o": [GPT4O],
    "granite-embed-multi-97m": [GPT4O],
    "tekken": [cased("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END],
    "kimi-k2": [
        r"[\p{Han}]+|" + cased(CONTRACTION + "?").replace(UPPER, UPPER[:-1] + NOT_HAN).replace(LOWER, LOWER[:-1] + NOT_HAN)
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END
    ],
    "youtu": [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + HAN_KANA,
        cased(CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END,
    ],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
}
WHOLE_WORDS = {"granite-embed-multi-97m", "tekken", "youtu"}
# Kinds that llama.cpp computes as the models' own expressions say, as far as those are known.
LLAMA_CPP = (
    "default gpt-2 smollm falcon llama-bpe dbrx glm4 qwen2 qwen35 ufakzeka laguna seed-coder bailingmoe exaone-moe minicpm5 jais-2 "
    "deepseek-v3 spark2_5 afmoe bloom viking chameleon"
).split()


def byte_pairs(rng, size):
    """A vocabulary whose merges cross every border between words: trained on texts that are not split at all."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator((text(rng) for _ in range(30000)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write(path, model, tokens, types, fill):
    w = gguf.GGUFWriter(path, "llama")
    w.add_vocab_size(len(tokens)), w.add_context_length(64), w.add_embedding_length(8), w.add_block_count(1)
    w.add_feed_forward_length(8), w.add_head_count(1), w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model(model), w.add_token_list(tokens), w.add_token_types(types)
    fill(w)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def write_byte_pairs(path, kind, vocab, merges):
    def fill(w):
        if kind is not None:
            w.add_tokenizer_pre(kind)
        w.add_token_merges([" ".join(merge) for merge in merges])
        w.add_bos_token_id(0), w.add_eos_token_id(0)

    tokens = sorted(vocab, key=vocab.get)
    write(path, "gpt2", tokens, [3 if token.startswith("<|") else 1 for token in tokens], fill)


def by_tokenizers(kind, vocab, merges, texts):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=kind in WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in EXPRESSIONS[kind]]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits + [letters])
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


@llama.llama_log_callback
def silent(level, message, user):
    pass


def by_llama_cpp(path, texts, parse_special=False):
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    params = llama.llama_model_default_params()
    params.vocab_only = True
    vocab = llama.llama_model_get_vocab(llama.llama_model_load_from_file(path.encode(), params))

    def ids(text):
        data = text.encode()
        out = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocab, data, len(data), out, len(out), False, parse_special)
        return list(out[:count])

    return [ids(text) for text in texts]


def sentence_pieces(path, model, corpus, prefix, remove_extra, **options):
    """Trains a SentencePiece model, writes its vocabulary, and gives the model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=out, add_dummy_prefix=prefix, remove_extra_whitespaces=remove_extra,
        user_defined_symbols=["<x>"], minloglevel=2, hard_vocab_limit=False, character_coverage=0.985, **options,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(out.getvalue())

    def fill(w):
        w.add_token_scores([piece.score for piece in proto.pieces])
        w.add_add_space_prefix(prefix), w.add_remove_extra_whitespaces(remove_extra)
        if proto.normalizer_spec.precompiled_charsmap:
            w.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)

    write(path, model, [piece.piece for piece in proto.pieces], [piece.type for piece in proto.pieces], fill)
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


# Unigram vocabularies: normalisation, space before a text, extra spaces removed, byte tokens.
UNIGRAMS = {
    "unigram-nfkc": ("nmt_nfkc", True, True, False),
    "unigram-bytes": ("identity", True, True, True),
    "unigram-no-prefix": ("identity", False, True, False),
    "unigram-spaces": ("identity", True, False, False),
}


def main():
    rng = random.Random(7)
    vocab, merges = byte_pairs(rng, 3500)
    write_byte_pairs("byte-pairs.gguf", None, vocab, merges)
    texts = [text(rng) for _ in range(160)]
    results = {kind: by_tokenizers(kind, vocab, merges, texts) for kind in EXPRESSIONS}
    for kind in LLAMA_CPP:
        write_byte_pairs("/tmp/kind.gguf", kind, vocab, merges)
        results[kind] = by_llama_cpp("/tmp/kind.gguf", texts)
    lines = []
    for i, line in enumerate(texts):
        groups = {}
        for kind in results:
            groups.setdefault(tuple(results[kind][i]), []).append(kind)
        lines.append({"text": line, "ids": [[" ".join(kinds), list(ids)] for ids, kinds in groups.items()]})
    json.dump(lines, open("byte-pairs.json", "w"), separators=(",", ":"))

    for name, (rule, prefix, remove_extra, byte_tokens) in UNIGRAMS.items():
        corpus = [sentence(rng) for _ in range(4000)]
        model = sentence_pieces(
            f"{name}.gguf", "t5", corpus, prefix, remove_extra, model_type="unigram", normalization_rule_name=rule,
            byte_fallback=byte_tokens, vocab_size=800, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        )
        texts = [sentence(rng) if i % 2 else text(rng) for i in range(120)]
        lines = [{"text": line, "ids": ids} for line, ids in zip(texts, model.encode(texts))]
        json.dump(lines, open(f"{name}.json", "w"), separators=(",", ":"))

    corpus = [text(rng).replace("\n", " ") for _ in range(20000)]
    sentence_pieces(
        "sentence-pieces.gguf", "llama", corpus, True, False, model_type="bpe", normalization_rule_name="identity",
        byte_fallback=True, vocab_size=2000, split_by_whitespace=False, split_by_unicode_script=False, split_by_number=False,
        allow_whitespace_only_pieces=True,
    )
    texts = [text(rng) + rng.choice(["", "<x>", "</s>", "<s> "]) + text(rng) for _ in range(120)]
    ids = by_llama_cpp("sentence-pieces.gguf", texts, parse_special=True)
    lines = [{"text": line, "ids": line_ids} for line, line_ids in zip(texts, ids)]
    json.dump(lines, open("sentence-pieces.json", "w"), separators=(",", ":"))


if __name__ == "__main__":
    main()
