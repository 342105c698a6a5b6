#!/usr/bin/env python3
"""Writes gemma3-270m.exact.json: the log probabilities of gemma3-270m.json's rows from a plain f64 forward pass.

The f32 engine that made gemma3-270m.json looks GELU up in a table of f16 values, which moves some of its log
probabilities by 1e-2. This file says what the model itself gives. With `--f16-gelu` the same pass rounds as that table
does and comes out within 5e-3 of the reference, which shows the cause.

    pip install gguf numpy
    python3 gemma3_exact.py gemma3-270m.gguf [--f16-gelu]
"""
import json, pathlib, sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

here = pathlib.Path(__file__).parent
tensors = {t.name: t for t in GGUFReader(sys.argv[1]).tensors}
f16_gelu = "--f16-gelu" in sys.argv
LAYERS, HEADS, HEAD, EPSILON, PERIOD = 18, 4, 256, 9.999999974752427e-07, 6


def weight(name):
    t = tensors[name]
    return dequantize(t.data, t.tensor_type).astype(np.float64)


def norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * w


def rope(x, base):
    half = HEAD // 2
    angle = np.arange(len(x))[:, None] * base ** (-2.0 * np.arange(half) / HEAD)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def gelu(x):
    table = (lambda v: v.astype(np.float16).astype(np.float64)) if f16_gelu else (lambda v: v)
    x = table(x)
    return table(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def log_probabilities(tokens):
    n = len(tokens)
    x = embedding[tokens] * np.float64(np.sqrt(np.float32(embedding.shape[1])))
    mask = np.triu(np.full((n, n), -np.inf), 1)  # no prompt here is longer than the window
    for layer in range(LAYERS):
        w = {k: weight(f"blk.{layer}.{k}.weight") for k in NAMES}
        h = norm(x, w["attn_norm"])
        base = 1e4 if layer % PERIOD < PERIOD - 1 else 1e6
        q = rope(norm((h @ w["attn_q"].T).reshape(n, HEADS, HEAD), w["attn_q_norm"]), base)
        k = rope(norm((h @ w["attn_k"].T).reshape(n, 1, HEAD), w["attn_k_norm"]), base)[:, 0]
        v = h @ w["attn_v"].T
        heads = []
        for i in range(HEADS):
            s = q[:, i] @ k.T / np.sqrt(HEAD) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            heads.append(s / s.sum(-1, keepdims=True) @ v)
        x = x + norm(np.concatenate(heads, -1) @ w["attn_output"].T, w["post_attention_norm"])
        h = norm(x, w["ffn_norm"])
        gated = gelu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)
        x = x + norm(gated @ w["ffn_down"].T, w["post_ffw_norm"])
    logits = norm(x, weight("output_norm.weight")) @ embedding.T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


NAMES = """attn_norm attn_q attn_k attn_v attn_q_norm attn_k_norm attn_output post_attention_norm
ffn_norm ffn_gate ffn_up ffn_down post_ffw_norm""".split()
embedding = weight("token_embd.weight")
prompts = json.load(open(here / "gemma3-270m.json"))["logprobs"]
worst = 0.0
for prompt in prompts:
    exact = log_probabilities([row["token"] for row in prompt["rows"]])
    for row, found in zip(prompt["rows"], exact):
        worst = max([worst] + [abs(found[i] - lp) for i, lp in row["top"] if lp > -6])
        row["top"] = [[i, round(float(found[i]), 6)] for i, _ in row["top"]]
print(f"worst difference from the reference: {worst:.2e}")
if not f16_gelu:
    with open(here / "gemma3-270m.exact.json", "w") as f:
        json.dump({"logprobs": prompts}, f, separators=(",", ":"))
