"""A small model to be changed: the metadata and the tensors' shapes of a file in `testdata/archs`, with weights of its own.

Weights are drawn anew, from the variant's and the tensor's names: norms lie round 1 and products have a gain above 1, so
that scores, routing and rope matter; in `testdata/archs` attention is almost uniform.
"""

import re
import zlib

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

from peer import fields, write

KINDS = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}


class Model:
    def __init__(self, base, name):
        """`base`: a path of a .gguf file; `name`: of the variant, what the weights are drawn from."""
        reader = GGUFReader(base)
        self.name = name
        self.metadata = {key: (kind, sub, value) for key, kind, sub, value in fields(reader)}
        self.family = self.metadata["general.architecture"][2]
        self.shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
        self.given, self.spread, self.blocks = {}, {}, {}

    def get(self, key):
        return self.metadata[f"{self.family}.{key}"][2]

    def set(self, **keys):
        """Sets metadata; `__` in a key is a dot, a list is an array of i32, and None takes the key away."""
        for key, value in keys.items():
            key = f"{self.family}.{key.replace('__', '.')}"
            if value is None:
                self.metadata.pop(key, None)
            elif isinstance(value, list):
                self.metadata[key] = (GGUFValueType.ARRAY, GGUFValueType.INT32, value)
            else:
                self.metadata[key] = (KINDS[type(value)], None, value)

    def drop(self, *parts):
        """Takes tensors away, in every layer that has them; a part may be a kind alone, as in `.bias`."""
        for part in parts:
            gone = self.names(part)
            assert gone, part
            for name in gone:
                del self.shapes[name]

    def names(self, part):
        """Tensors that are called so, outside the layers or in each of them."""

        def called(name):
            return name.endswith(part) if part.startswith(".") else re.sub(r"^blk\.\d+\.", "", name) == part

        return [name for name in self.shapes if called(name)]

    def layer(self, index):
        prefix = f"blk.{index}."
        return {name[len(prefix) :]: shape for name, shape in self.shapes.items() if name.startswith(prefix)}

    def layers(self, *like):
        """As many layers as there are arguments; each is like the layer of the base that it names."""
        old = {index: self.layer(index) for index in set(like)}
        self.shapes = {name: shape for name, shape in self.shapes.items() if not name.startswith("blk.")}
        for index, model in enumerate(like):
            for part, shape in old[model].items():
                self.shapes[f"blk.{index}.{part}"] = shape
        self.set(block_count=len(like), attention__sliding_window_pattern=None)

    def heads(self, heads, kv_heads, dim, rotary=None):
        """Heads, key-value heads, values of each, and how many of them rope turns (all)."""
        rotary = rotary or dim
        self.set(attention__head_count=heads, attention__head_count_kv=kv_heads)
        for key in ("attention__key_length", "attention__value_length"):
            self.set(**{key: dim, f"{key}_swa": dim})
        self.set(rope__dimension_count=rotary, rope__dimension_count_swa=rotary)
        width = self.get("embedding_length")
        for name, shape in self.shapes.items():
            part = name.split(".", 2)[-1]
            rows = {"attn_q": heads, "attn_k": kv_heads, "attn_v": kv_heads}.get(part.split(".")[0])
            if rows:
                self.shapes[name] = (rows * dim,) + shape[1:]
            elif part == "attn_output.weight":
                self.shapes[name] = (width, heads * dim)
            elif part in ("attn_q_norm.weight", "attn_k_norm.weight") and self.family in ("olmo2", "olmoe"):
                self.shapes[name] = ((heads if "_q_" in part else kv_heads) * dim,)
            elif part in ("attn_q_norm.weight", "attn_k_norm.weight"):
                self.shapes[name] = (dim,)
            elif part == "attn_sinks.weight":
                self.shapes[name] = (heads,)
            elif name.startswith("rope_"):
                self.shapes[name] = (rotary // 2,)

    def hidden(self, hidden, shared=None):
        """Values between up and down: of the dense network and each expert, and of the shared one."""
        width = self.get("embedding_length")
        for key in ("feed_forward_length", "expert_feed_forward_length"):
            if f"{self.family}.{key}" in self.metadata:
                self.set(**{key: hidden})
        for name, shape in self.shapes.items():
            part = name.split(".", 2)[-1]
            n = shared if "_shexp" in part else hidden
            if n is None or "_inp" in part:
                continue
            fused = 2 if part == "ffn_up.weight" and self.family in ("phi3", "glm4") else 1
            if part.startswith(("ffn_gate", "ffn_up")):
                experts = 1 if "exps" in part else 0
                self.shapes[name] = shape[:experts] + (fused * n,) + ((width,) if part.endswith("weight") else ())
            elif part.startswith("ffn_down") and part.endswith("weight"):
                self.shapes[name] = shape[:-1] + (n,)

    def fuse(self):
        """One product for q, k and v, and one bias."""
        for kind in ("weight", "bias"):
            for name in self.names(f"attn_q.{kind}"):
                shapes = [self.shapes.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
                self.shapes[name.replace("attn_q", "attn_qkv")] = (sum(s[0] for s in shapes),) + shapes[0][1:]

    def vector(self, name, values):
        """A tensor of these values; every other one is drawn."""
        self.given[name] = np.array(values, dtype=np.float32)
        self.shapes[name] = self.given[name].shape

    def packed(self, part, scaled):
        """The weights that are called so as NVFP4 blocks, and beside each a factor (one for each expert) if `scaled`."""
        for name in self.names(part):
            shape = self.shapes[name]
            self.blocks[name] = GGMLQuantizationType.NVFP4
            if scaled:
                scale = name.replace(".weight", ".scale")
                count = shape[0] if len(shape) == 3 else 1
                self.vector(scale, self._random(scale).uniform(0.5, 2.0, count))

    def _random(self, tensor):
        return np.random.default_rng(zlib.crc32(f"{self.name}/{tensor}".encode()))

    def _draw(self, name, shape):
        random = self._random(name)
        if name in self.blocks:
            return self._nvfp4(random, shape), self.blocks[name]
        spread = next((s for ending, s in self.spread.items() if name.endswith(ending)), 0.2)
        x = random.standard_normal(shape).astype(np.float32) * np.float32(spread)
        if "norm" in name:
            return x + np.float32(1.0)
        if len(shape) > 1 and name.endswith(".weight") and "ffn_gate_inp" not in name:
            return x.astype(np.float16)
        return x

    @staticmethod
    def _nvfp4(random, shape):
        """Blocks of 64 weights: four unsigned e4m3 scales (here from 1/32 to 1/8), then 32 bytes of two e2m1 codes."""
        blocks = int(np.prod(shape)) // 64
        scales = random.integers(0x10, 0x20, (blocks, 4), dtype=np.uint8)
        codes = random.integers(0, 256, (blocks, 32), dtype=np.uint8)
        return np.concatenate([scales, codes], axis=1).reshape(*shape[:-1], shape[-1] // 64 * 36)

    def write(self, path):
        tensors = {name: self.given.get(name, None) for name in self.shapes}
        for name, shape in self.shapes.items():
            if tensors[name] is None:
                tensors[name] = self._draw(name, shape)
        write(path, self.metadata, tensors)
