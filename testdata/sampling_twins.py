"""Writes sampling_twins.json: what llama.cpp's own samplers (llama-cpp-python 0.3.36) make of rows of logits, one sampler at
a time. `python sampling_twins.py FOLDER_OF_MODELS`; smollm2-135m and gemma3-270m give the vocabularies for DRY.

A row is 200 different multiples of 1/64, so that no two tokens tie. `kept` are the ids that a sampler leaves, `logits` what
it makes of them. In mirostat's rows `drawn` is what the peer's generator happened to draw: the bound of the next row
follows from it."""

import ctypes
import json
import pathlib
import random
import sys

import llama_cpp as peer

VOCABULARY = 200
rng = random.Random(7)


def row(scale=64):
    values = rng.sample(range(-600, 600), VOCABULARY)
    return [value / scale for value in values]


class Candidates:
    def __init__(self, logits):
        self.data = (peer.llama_token_data * len(logits))()
        for token, logit in enumerate(logits):
            self.data[token] = peer.llama_token_data(token, logit, 0.0)
        self.array = peer.llama_token_data_array(self.data, len(logits), -1, False)

    def apply(self, sampler):
        peer.llama_sampler_apply(sampler, ctypes.byref(self.array))
        return self

    def kept(self):
        return sorted(self.array.data[i].id for i in range(self.array.size))

    def logits(self):
        found = {self.array.data[i].id: self.array.data[i].logit for i in range(self.array.size)}
        return [found[token] for token in sorted(found)]


def filters():
    cases = []
    for name, values, make in [
        ("top_k", [1, 3, 40, 199], lambda k: peer.llama_sampler_init_top_k(k)),
        ("top_p", [0.1, 0.5, 0.9, 0.99], lambda p: peer.llama_sampler_init_top_p(p, 1)),
        ("min_p", [0.01, 0.1, 0.5], lambda p: peer.llama_sampler_init_min_p(p, 1)),
        ("typical_p", [0.01, 0.2, 0.5, 0.9, 0.99], lambda p: peer.llama_sampler_init_typical(p, 1)),
        ("xtc_threshold", [0.01, 0.05, 0.1, 0.3], lambda t: peer.llama_sampler_init_xtc(1.0, t, 1, 1)),
    ]:
        for value in values:
            for scale in [64, 200, 30]:
                logits = row(scale)
                kept = Candidates(logits).apply(make(value)).kept()
                cases.append({"field": name, "value": value, "logits": logits, "kept": kept})
    return cases


def dynamic_temperatures():
    cases = []
    for temperature, spread, exponent in [(0.8, 0.5, 1.0), (1.0, 1.5, 2.0), (0.3, 0.3, 0.5), (2.0, 0.7, 1.0)]:
        for scale in [64, 400]:
            logits = row(scale)
            found = Candidates(logits).apply(peer.llama_sampler_init_temp_ext(temperature, spread, exponent)).logits()
            # The logits were divided by the temperature: the largest one tells it best.
            best = max(range(VOCABULARY), key=lambda token: abs(logits[token]))
            cases.append(
                {
                    "temperature": temperature,
                    "dynatemp_range": spread,
                    "dynatemp_exponent": exponent,
                    "logits": logits,
                    "expect": logits[best] / found[best],
                }
            )
    return cases


def mirostats():
    cases = []
    for tau, eta in [(5.0, 0.1), (2.0, 0.3), (0.5, 1.0)]:
        sampler = peer.llama_sampler_init_mirostat_v2(11, tau, eta)
        steps = []
        for _ in range(12):
            logits = row(100)
            candidates = Candidates(logits).apply(sampler)
            drawn = candidates.array.data[candidates.array.selected].id
            steps.append({"logits": logits, "kept": candidates.kept(), "drawn": drawn})
        cases.append({"mirostat_tau": tau, "mirostat_eta": eta, "steps": steps})
    return cases


def penalties():
    cases = []
    for last_n, repeat, frequency, presence in [(64, 1.1, 0.0, 0.0), (8, 1.5, 0.25, -0.5), (30, 0.75, -1.0, 1.5)]:
        logits = row()
        tokens = [rng.randrange(20) for _ in range(40)]
        sampler = peer.llama_sampler_init_penalties(VOCABULARY, last_n, repeat, frequency, presence)
        for token in tokens:
            peer.llama_sampler_accept(sampler, token)
        cases.append(
            {
                "repeat_last_n": last_n,
                "repeat_penalty": repeat,
                "frequency_penalty": frequency,
                "presence_penalty": presence,
                "tokens": tokens,
                "logits": logits,
                "expect": Candidates(logits).apply(sampler).logits(),
            }
        )
    return cases


TEXTS = [
    "The cat sat on the mat. The cat sat on the mat. The cat sat on the",
    "one two three\none two three\none two",
    "She said: \"go home\" and he said: \"go home\" and she said: \"go",
    "a a a a a a a a a a a a a a a a",
    "x = 1; y = 2; x = 1; y = 2; x = 1; y",
    "- **bold** text\n- **bold** text\n- **bold** text\n- **",
    "Step one END OF PART step two END OF PART step one END OF PART step",
    "日本語の文。日本語の文。日本語の文。日本",
    "abc###abc###abc###abc## abc abc abc abc",
]
DEFAULT_BREAKERS = ["\n", ":", '"', "*"]
SETTINGS = [
    (0.8, 1.75, 2, 1024, DEFAULT_BREAKERS),
    (0.8, 1.75, 2, 64, []),
    (1.5, 1.1, 1, 12, [".", "END OF", "###"]),
    (2.0, 3.0, 4, 1024, ["。", " and", "two\none"]),
]


def dries(folder, name):
    model = peer.Llama(str(folder / f"{name}.gguf"), vocab_only=True, verbose=False)
    vocabulary = peer.llama_model_get_vocab(model.model)
    cases = []
    for text in TEXTS:
        tokens = model.tokenize(text.encode(), add_bos=False, special=False)
        for multiplier, base, allowed, last_n, breakers in SETTINGS:
            strings = (ctypes.c_char_p * len(breakers))(*[breaker.encode() for breaker in breakers])
            pointers = ctypes.cast(strings, ctypes.POINTER(ctypes.POINTER(ctypes.c_char)))
            try:
                sampler = peer.llama_sampler_init_dry(
                    vocabulary, multiplier, base, allowed, last_n, pointers, len(breakers)
                )
            except ctypes.ArgumentError:
                sampler = peer.llama_sampler_init_dry(
                    vocabulary, multiplier, base, allowed, last_n, strings, len(breakers)
                )
            for token in tokens:
                peer.llama_sampler_accept(sampler, token)
            found = Candidates([0.0] * model.n_vocab()).apply(sampler).logits()
            cases.append(
                {
                    "model": name,
                    "dry_multiplier": multiplier,
                    "dry_base": base,
                    "dry_allowed_length": allowed,
                    "dry_penalty_last_n": last_n,
                    "dry_sequence_breakers": breakers,
                    "tokens": tokens,
                    "penalties": [[token, -logit] for token, logit in enumerate(found) if logit != 0.0],
                }
            )
    return cases


folder = pathlib.Path(sys.argv[1])
twins = {
    "filters": filters(),
    "dynamic_temperatures": dynamic_temperatures(),
    "mirostats": mirostats(),
    "penalties": penalties(),
    "dries": dries(folder, "smollm2-135m") + dries(folder, "gemma3-270m"),
}
lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for name, cases in twins.items()]
pathlib.Path(__file__).with_name("sampling_twins.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
