"""Why the gemma models are further from the peer's logits than all others: the peer looks GELU up in a table of f16 values.

    python gelu_table.py FOLDER NAME...

For each gemma2 or gemma3 model FOLDER/NAME.gguf, computes the logits in f64, once with the exact GELU and once with that
of the table (`ggml_vec_geglu_f32`: argument and result rounded to f16), and prints how far each is from the peer's. With the
table what is left is the rounding of f32; so the difference is the table's, and the oracle, which is exact, is right.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize

from peer import fields


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x)))


def gelu_of_table(x):
    rounded = gelu(x.astype(np.float16).astype(np.float64)).astype(np.float16).astype(np.float64)
    return np.where(x <= -10, 0, np.where(x >= 10, x, rounded))


class Gemma:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.metadata = {name: value for name, _, _, value in fields(reader)}
        self.family = self.metadata["general.architecture"]
        self.tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}

    def get(self, key, usual=None):
        return self.metadata.get(f"{self.family}.{key}", usual)

    def norm(self, x, name):
        epsilon = self.get("attention.layer_norm_rms_epsilon")
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * self.tensors[name]

    def linear(self, x, name):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def windowed(self, layer):
        usual = 2 if self.family == "gemma2" else 6
        pattern = self.get("attention.sliding_window_pattern", usual)
        if not self.window():
            return False
        return bool(pattern[layer]) if isinstance(pattern, list) else layer % pattern < pattern - 1

    def window(self):
        return self.get("attention.sliding_window", 4096 if self.family == "gemma2" else 0)

    def turn(self, x, layer):
        base, scale = self.get("rope.freq_base", 10_000.0), 1 / self.get("rope.scaling.factor", 1.0)
        if self.windowed(layer):
            base = self.get("rope.freq_base_swa", base if self.family == "gemma2" else 10_000.0)
            scale = scale if self.family == "gemma2" else 1.0
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None, None] * scale * base ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)

    def attention(self, x, layer):
        heads, kv_heads = self.get("attention.head_count"), self.get("attention.head_count_kv")
        dim, rows, name = self.get("attention.key_length"), len(x), f"blk.{layer}."
        q, k, v = (self.linear(x, name + f"attn_{part}").reshape(rows, -1, dim) for part in "qkv")
        if self.family == "gemma3":
            q, k = self.norm(q, name + "attn_q_norm.weight"), self.norm(k, name + "attn_k_norm.weight")
        q, k = self.turn(q, layer), self.turn(k, layer)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        if self.family == "gemma2":
            cap = self.get("attn_logit_softcapping", 50.0)
            scores = cap * np.tanh(scores / cap)
        back = np.arange(rows)[:, None] - np.arange(rows)[None, :]
        hidden = (back < 0) | (self.windowed(layer) & (back >= self.window()))
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(np.einsum("hqk,khd->qhd", weights, v).reshape(rows, -1), name + "attn_output")

    def logits(self, tokens, activation):
        x = self.tensors["token_embd.weight"][tokens] * np.sqrt(self.get("embedding_length"))
        for layer in range(self.get("block_count")):
            name = f"blk.{layer}."
            mixed = self.attention(self.norm(x, name + "attn_norm.weight"), layer)
            x = x + self.norm(mixed, name + "post_attention_norm.weight")
            normed = self.norm(x, name + "ffn_norm.weight")
            gated = activation(self.linear(normed, name + "ffn_gate")) * self.linear(normed, name + "ffn_up")
            x = x + self.norm(self.linear(gated, name + "ffn_down"), name + "post_ffw_norm.weight")
        head = "output" if "output.weight" in self.tensors else "token_embd"
        logits = self.linear(self.norm(x, "output_norm.weight"), head)
        cap = self.get("final_logit_softcapping", 30.0 if self.family == "gemma2" else 0.0)
        return cap * np.tanh(logits / cap) if cap else logits


if __name__ == "__main__":
    for name in sys.argv[2:]:
        path = Path(sys.argv[1]) / f"{name}.gguf"
        rows = json.loads(path.with_name(name.removesuffix(".f16") + ".logits.json").read_text())["rows"]
        model, known = Gemma(path), [row["pos"] for row in rows if "logits" in row]
        wanted = np.array([rows[position]["logits"] for position in known])
        for label, activation in (("exact", gelu), ("table", gelu_of_table)):
            found = model.logits([row["token"] for row in rows], activation)[known]
            print(f"{name:<20} {label} {((found - wanted) ** 2).sum() / (wanted**2).sum():.1e}")
