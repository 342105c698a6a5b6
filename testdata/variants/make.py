"""Writes the variants: small models that ask for what those in `testdata/archs` do not, and the peer's logits for them.

    python make.py ARCHS OUT [NAME...]

ARCHS is `testdata/archs`. A variant is a base with changes of shape, and *twists*, changes of what is computed. Each twist
is also left out once: unless that moves the logits by `BITES`, the variant would prove nothing and is refused.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import peer
from model import Model

BITES = 1e-4
"""Normalised mean square distance over the prompt that leaving out any one twist must cause."""

VARIANTS = {}


def variant(base):
    """Registers a function that changes a model and yields its twists; its name is the variant's."""

    def register(change):
        VARIANTS[change.__name__.replace("_", "-")] = (base, change)
        return change

    return register


def rope_factors(pairs, low, high):
    return np.linspace(low, high, pairs)


YARN = dict(rope__scaling__type="yarn", rope__scaling__factor=8.0, rope__scaling__original_context_length=4096)


@variant("llama-dense")
def llama_linear(m):
    m.heads(4, 2, 32)
    m.drop("rope_freqs.weight", ".bias", "output.weight")
    yield lambda m: m.set(rope__scaling__type="linear", rope__scaling__factor=4.0)
    yield lambda m: m.set(rope__scaling__attn_factor=1.3)


@variant("llama-dense")
def llama_yarn(m):
    m.drop("rope_freqs.weight")
    m.set(context_length=32768)
    yield lambda m: m.set(**YARN)
    yield lambda m: m.set(rope__scaling__attn_factor=1.2)


@variant("llama-dense")
def llama_fused(m):
    m.heads(4, 1, 32)
    m.fuse()
    m.vector("rope_freqs.weight", rope_factors(16, 1.0, 8.0))
    yield lambda m: m.vector("rope_freqs.weight", rope_factors(16, 8.0, 1.0))


@variant("llama-moe")
def llama_groups(m):
    m.heads(4, 2, 32)
    m.hidden(32)
    m.drop("rope_freqs.weight", "output.weight")
    yield lambda m: m.set(expert_used_count=1)
    yield lambda m: m.set(expert_group_count=4, expert_group_used_count=1)


@variant("llama-dense")
def llama_nvfp4(m):
    m.hidden(64)
    m.drop("rope_freqs.weight", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias", "attn_output.bias")
    parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    for part in parts:
        m.packed(f"{part}.weight", scaled=part != "attn_v")
    m.packed("output.weight", scaled=False)
    m.vector("output.scale", [0.75])
    for part in parts[:3] + parts[4:]:
        if part != "attn_v":
            yield lambda m, part=part: [m.vector(f"blk.{i}.{part}.scale", [1.0 + i]) for i in range(2)]


@variant("qwen2-dense")
def qwen2_fused(m):
    m.heads(4, 2, 16)
    m.fuse()
    m.drop("output.weight")
    m.set(context_length=131072)
    yield lambda m: m.set(**YARN)


@variant("mistral3-dense")
def mistral3_yarn(m):
    m.heads(4, 2, 32)
    m.drop("rope_freqs.weight", ".bias")
    yield lambda m: m.set(**YARN)
    yield lambda m: m.set(rope__scaling__original_context_length=16)
    yield lambda m: m.set(rope__scaling__yarn_beta_fast=1.0)
    yield lambda m: m.set(rope__scaling__yarn_beta_slow=0.05)
    yield lambda m: m.set(rope__scaling__yarn_log_multiplier=0.7)
    yield lambda m: m.set(attention__temperature_scale=0.5)


@variant("phi3-dense")
def phi3_short(m):
    m.heads(4, 2, 16)
    m.drop(".bias")
    m.fuse()
    m.set(context_length=256, rope__scaling__original_context_length=256)
    m.vector("rope_factors_short.weight", np.ones(8))
    m.vector("rope_factors_long.weight", rope_factors(8, 2.0, 30.0))
    yield lambda m: m.vector("rope_factors_short.weight", rope_factors(8, 1.0, 3.0))
    yield lambda m: m.set(rope__scaling__attn_factor=1.19)


@variant("phi3-dense")
def phi3_long(m):
    m.heads(4, 2, 16, rotary=12)
    m.drop(".bias", "output.weight")
    m.fuse()
    m.set(context_length=256, rope__scaling__type="longrope", rope__scaling__attn_factor=1.19)
    m.vector("rope_factors_short.weight", np.ones(6))
    m.vector("rope_factors_long.weight", rope_factors(6, 2.0, 30.0))
    yield lambda m: m.set(rope__scaling__original_context_length=32)


@variant("minicpm-dense")
def minicpm_long(m):
    m.heads(4, 2, 32)
    m.drop("rope_freqs.weight", ".bias")
    m.set(context_length=256, embedding_scale=None, residual_scale=None, logit_scale=None)
    m.vector("rope_factors_short.weight", np.ones(16))
    m.vector("rope_factors_long.weight", rope_factors(16, 2.0, 30.0))
    m.set(rope__scaling__type="longrope", rope__scaling__attn_factor=1.1)
    yield lambda m: m.set(rope__scaling__original_context_length=32)
    yield lambda m: m.set(logit_scale=3.0)


@variant("minicpm-moe")
def minicpm_scales(m):
    m.heads(4, 2, 32)
    m.hidden(32)
    m.drop("rope_freqs.weight", ".bias", "output.weight")
    yield lambda m: m.set(embedding_scale=2.0)
    yield lambda m: m.set(residual_scale=0.5)
    yield lambda m: m.set(logit_scale=4.0)


@variant("granite-dense")
def granite_scales(m):
    m.heads(4, 2, 32)
    m.drop("rope_freqs.weight", ".bias", "output.weight")
    yield lambda m: m.set(logit_scale=8.0)
    yield lambda m: m.set(residual_scale=0.22)
    yield lambda m: m.set(embedding_scale=12.0)
    yield lambda m: m.set(attention__scale=0.03125)


@variant("granite-dense")
def granite_no_rope(m):
    m.set(residual_scale=0.5)
    yield lambda m: m.set(rope__scaling__finetuned=False)


@variant("granitemoe-moe")
def granitemoe_scales(m):
    m.heads(4, 2, 16)
    m.hidden(32, shared=64)
    m.drop("rope_freqs.weight", ".bias")
    m.set(rope__scaling__finetuned=False, expert_shared_feed_forward_length=64)
    yield lambda m: m.set(logit_scale=6.0)
    yield lambda m: m.set(residual_scale=0.22)
    yield lambda m: m.set(embedding_scale=6.0)
    yield lambda m: m.set(attention__scale=0.5)
    yield lambda m: m.set(expert_group_count=4, expert_group_used_count=2)


@variant("granitemoe-moe")
def granitemoe_no_shared(m):
    m.hidden(32)
    m.drop("rope_freqs.weight", "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
    m.set(expert_shared_feed_forward_length=None, residual_scale=None)
    yield lambda m: m.set(expert_used_count=2)


@variant("gemma2-dense")
def gemma2_caps(m):
    m.layers(0, 0, 0)
    m.heads(4, 2, 32)
    m.drop(".bias")
    m.set(rope__freq_base_swa=None)
    yield lambda m: m.set(attn_logit_softcapping=1.5)
    yield lambda m: m.set(final_logit_softcapping=2.0)
    yield lambda m: m.set(attention__sliding_window=8)
    yield lambda m: m.set(rope__freq_base_swa=100.0)
    yield lambda m: m.set(rope__scaling__factor=4.0)


@variant("gemma2-dense")
def gemma2_defaults(m):
    m.layers(0, 0)
    m.spread["token_embd.weight"] = 2.0
    m.set(attn_logit_softcapping=None, final_logit_softcapping=None, attention__sliding_window=None)
    m.set(attention__scale=None, rope__freq_base_swa=None)
    m.spread["attn_q.weight"] = m.spread["attn_k.weight"] = 1.0
    yield lambda m: m.set(rope__freq_base=500.0)


@variant("gemma3-dense")
def gemma3_windows(m):
    m.layers(*[0] * 7)
    m.heads(4, 1, 16)
    m.hidden(32)
    m.drop(".bias", "output.weight")
    m.set(rope__freq_base=100_000.0, attention__scale=None)
    yield lambda m: m.set(attention__sliding_window=8)
    yield lambda m: m.set(rope__freq_base_swa=100.0)
    yield lambda m: m.set(rope__scaling__type="linear", rope__scaling__factor=8.0)
    yield lambda m: m.set(final_logit_softcapping=3.0)


@variant("gemma3-dense")
def gemma3_no_window(m):
    m.layers(0, 0)
    m.set(attention__sliding_window=None, attention__scale=None, rope__freq_base_swa=None)
    yield lambda m: m.set(rope__freq_base=100.0)


@variant("olmo2-dense")
def olmo2_windows(m):
    m.layers(*[0] * 5)
    m.heads(4, 2, 16)
    m.hidden(32)
    m.drop(".bias")
    m.set(context_length=32768)
    yield lambda m: m.set(attention__sliding_window=8)
    yield lambda m: m.set(**YARN)
    yield lambda m: m.set(rope__scaling__attn_factor=1.5)


@variant("olmo2-dense")
def olmo2_no_window(m):
    m.layers(0, 0)
    m.heads(4, 2, 16)
    m.set(attention__sliding_window=None)
    yield lambda m: m.set(rope__freq_base=100.0)


@variant("smollm3-dense")
def smollm3_four_layers(m):
    m.layers(0, 0, 0, 0)
    m.heads(4, 2, 32)
    m.hidden(32)
    m.drop(".bias", "output.weight")
    yield lambda m: m.set(rope__freq_base=100.0)


@variant("glm4-dense")
def glm4_partial(m):
    m.layers(0, 0, 0)
    m.heads(4, 2, 32, rotary=16)
    m.hidden(64)
    m.set(rope__dimension_sections=None, nextn_predict_layers=1)
    width = m.get("embedding_length")
    m.shapes["blk.2.nextn.eh_proj.weight"] = (width, 2 * width)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        m.shapes[f"blk.2.nextn.{part}.weight"] = (width,)
    yield lambda m: m.set(rope__freq_base=500.0)


@variant("glm4-dense")
def glm4_sections(m):
    m.heads(4, 2, 32, rotary=16)
    m.drop(".bias", "output.weight")
    m.set(rope__dimension_sections=None)
    yield lambda m: m.set(rope__dimension_sections=[2, 3, 3, 0])


@variant("glm4moe-moe")
def glm4moe_groups(m):
    m.layers(0, 1, 1, 1)
    m.heads(4, 2, 32, rotary=16)
    m.hidden(32, shared=64)
    m.drop("attn_q_norm.weight", "attn_k_norm.weight", "output.weight")
    m.set(expert_gating_func=None, expert_shared_count=2, rope__dimension_sections=None, nextn_predict_layers=1)
    width = m.get("embedding_length")
    m.shapes["blk.3.nextn.eh_proj.weight"] = (width, 2 * width)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        m.shapes[f"blk.3.nextn.{part}.weight"] = (width,)
    yield lambda m: m.set(expert_weights_norm=True)
    yield lambda m: m.set(expert_weights_scale=2.5)
    yield lambda m: m.set(expert_group_count=4, expert_group_used_count=2)


@variant("glm4moe-moe")
def glm4moe_softmax(m):
    m.layers(1, 1)
    m.hidden(32, shared=32)
    m.drop(".bias")
    for i in range(2):
        m.shapes[f"blk.{i}.exp_probs_b.bias"] = (8,)
    m.set(leading_dense_block_count=None)
    yield lambda m: m.set(expert_gating_func=1)
    yield lambda m: m.set(expert_weights_scale=1.7)


@variant("glm4moe-moe")
def glm4moe_softmax_chosen(m):
    m.layers(0, 1)
    m.hidden(32, shared=32)
    yield lambda m: m.set(expert_gating_func=3)


@variant("qwen2moe-moe")
def qwen2moe_shared(m):
    m.heads(4, 2, 16)
    m.hidden(32, shared=96)
    # The hidden width of an expert is feed_forward_length over the experts used where no key says it.
    m.set(feed_forward_length=96, expert_feed_forward_length=None, expert_shared_feed_forward_length=None)
    yield lambda m: m.set(rope__freq_base=100.0)


@variant("qwen3moe-moe")
def qwen3moe_groups(m):
    m.heads(4, 1, 32)
    m.hidden(32)
    m.drop(".bias", "output.weight")
    yield lambda m: m.set(expert_used_count=4)
    yield lambda m: m.set(expert_group_count=2, expert_group_used_count=1)


@variant("qwen3moe-moe")
def qwen3moe_nvfp4(m):
    m.hidden(64)
    m.set(expert_used_count=2)
    for part in ("gate", "up", "down"):
        m.packed(f"ffn_{part}_exps.weight", scaled=True)
        yield lambda m, part=part: [m.vector(f"blk.{i}.ffn_{part}_exps.scale", np.arange(1.0, 9.0) / 4) for i in range(2)]


@variant("olmoe-moe")
def olmoe_one_expert(m):
    m.heads(4, 4, 16)
    m.hidden(32)
    m.drop(".bias")
    yield lambda m: m.set(expert_used_count=1)


@variant("gpt-oss-moe")
def gpt_oss_yarn(m):
    m.layers(0, 0, 0)
    m.heads(4, 2, 32)
    m.hidden(32)
    m.spread["attn_sinks.weight"] = 2.0
    for part in ("gate", "up"):
        m.spread[f"ffn_{part}_exps.weight"] = 1.0
    m.set(context_length=131072, rope__freq_base=150_000.0, rope__freq_base_swa=None, expert_used_count=4)
    m.set(rope__scaling__original_context_length=4096)
    yield lambda m: m.set(rope__scaling__type="yarn", rope__scaling__factor=32.0)
    yield lambda m: m.set(attention__sliding_window=8)
    yield lambda m: m.set(rope__freq_base_swa=1000.0)


@variant("ernie4_5-moe-moe")
def ernie4_5_moe_deep(m):
    m.layers(0, 1, 1)
    m.heads(4, 2, 16)
    m.hidden(32)
    shared = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
    m.drop("exp_probs_b.bias", "attn_output.bias", "output.weight", *shared)
    m.set(interleave_moe_layer_step=1, expert_shared_feed_forward_length=None)
    m.set(feed_forward_length=32, rope__dimension_sections=None)
    yield lambda m: m.set(expert_used_count=2)


def distance(a, b):
    return float(((a - b) ** 2).sum() / (b**2).sum())


def make(archs, out, name):
    base, change = VARIANTS[name]
    plain = Model(archs / f"{base}.f16.gguf", name)
    twists = list(change(plain))
    whole = copy.deepcopy(plain)
    for twist in twists:
        twist(whole)
    path = out / f"{name}.gguf"
    whole.write(path)
    tokens, logits = peer.logits(path)
    assert np.isfinite(logits).all(), name
    prompt = len(peer.PROMPT)
    moved = []
    for left_out in twists:
        less = copy.deepcopy(plain)
        for twist in twists:
            if twist is not left_out:
                twist(less)
        with tempfile.TemporaryDirectory() as folder:
            less.write(Path(folder) / "less.gguf")
            _, other = peer.logits(Path(folder) / "less.gguf")
        moved.append(distance(other[:prompt], logits[:prompt]))
    print(f"{name:<24} {path.stat().st_size:>8} bytes; twists move the logits by", *(f"{x:.1e}" for x in moved))
    assert moved and min(moved) > BITES, f"{name}: a twist changes nothing"
    rows = []
    for position, token in enumerate(tokens):
        row = {"pos": position, "token": token}
        if position % 4 == 3:
            row["logits"] = [round(float(x), 6) for x in logits[position]]
        rows.append(row)
    text = {"model": path.name, "prompt_ids": peer.PROMPT, "rows": rows}
    (out / f"{name}.logits.json").write_text(json.dumps(text, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    archs, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in sys.argv[3:] or VARIANTS:
        make(archs, out, name)
