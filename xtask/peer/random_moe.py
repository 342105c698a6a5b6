#!/usr/bin/env python3
"""Writes a mixture of experts of real size with random weights, to time: `random_moe.py TOKENIZER.gguf OUTPUT.gguf`.

A Qwen3-MoE by its metadata, with the vocabulary and tokenizer of another GGUF file. Gate and up of the experts and the
queries are Q4_K, what llama.cpp's Q4_K_M keeps finer (down, values, embedding) Q6_K. The blocks are random but valid: scales
are small and finite, and the weights of a row have a spread of about 0.03 and no mean, so that activations neither vanish
nor overflow and the router spreads tokens over all experts. Its text is nonsense.

    python3 xtask/peer/random_moe.py qwen2.5-coder-0.5b.gguf moe.gguf
    cargo xtask bench --file moe.gguf
"""

import argparse

import gguf
import numpy as np

Q4_K, Q6_K, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K", "F32"))
HEAD_DIM = 64


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("output")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--used", type=int, default=8)
    parser.add_argument("--expert-width", type=int, default=768)
    return parser.parse_args()


def random_blocks(draw, kind, shape):
    """Packed rows of `shape`, whose last dimension is a multiple of 256."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // block
    blocks = np.frombuffer(draw.bytes(count * block_bytes), dtype=np.uint8).reshape(count, block_bytes).copy()
    halves = lambda value: np.full(count, value, dtype=np.float16).view(np.uint8).reshape(count, 2)
    if kind == Q4_K:
        # d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of codes: the middle code gives 0.
        blocks[:, 0:2], blocks[:, 2:4] = halves(2e-4), halves(1.5e-3)
    else:
        # 128 + 64 bytes of codes, 16 scales of 8 bits, d.
        blocks[:, 192:208] = draw.integers(-16, 17, (count, 16), dtype=np.int8).view(np.uint8)
        blocks[:, 208:210] = halves(1.6e-4)
    return blocks.reshape(*shape[:-1], shape[-1] // block * block_bytes)


def main():
    args = arguments()
    draw = np.random.default_rng(1)
    writer = gguf.GGUFWriter(args.output, "qwen3moe")
    vocabulary = 0
    for field in gguf.GGUFReader(args.tokenizer).fields.values():
        if field.name.startswith("tokenizer."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            value = field.contents()
            writer.add_key_value(field.name, value, field.types[0], sub_type=field.types[-1] if is_array else None)
            if field.name == "tokenizer.ggml.tokens":
                vocabulary = len(value)

    writer.add_name("random mixture of experts")
    writer.add_block_count(args.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(args.width)
    writer.add_feed_forward_length(args.expert_width * args.used)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(args.experts)
    writer.add_expert_used_count(args.used)
    writer.add_expert_feed_forward_length(args.expert_width)

    def packed(name, kind, *shape):
        writer.add_tensor(f"{name}.weight", random_blocks(draw, kind, shape), raw_dtype=kind)

    def ones(name, length):
        writer.add_tensor(f"{name}.weight", np.ones(length, dtype=np.float32))

    width, experts, inner = args.width, args.experts, args.expert_width
    packed("token_embd", Q6_K, vocabulary, width)
    packed("output", Q6_K, vocabulary, width)
    ones("output_norm", width)
    for layer in range(args.layers):
        at = f"blk.{layer}."
        ones(at + "attn_norm", width)
        packed(at + "attn_q", Q4_K, args.heads * HEAD_DIM, width)
        packed(at + "attn_k", Q4_K, args.kv_heads * HEAD_DIM, width)
        packed(at + "attn_v", Q6_K, args.kv_heads * HEAD_DIM, width)
        packed(at + "attn_output", Q4_K, width, args.heads * HEAD_DIM)
        ones(at + "attn_q_norm", HEAD_DIM)
        ones(at + "attn_k_norm", HEAD_DIM)
        ones(at + "ffn_norm", width)
        router = draw.normal(0, 0.03, (experts, width)).astype(np.float32)
        writer.add_tensor(at + "ffn_gate_inp.weight", router, raw_dtype=F32)
        packed(at + "ffn_gate_exps", Q4_K, experts, inner, width)
        packed(at + "ffn_up_exps", Q4_K, experts, inner, width)
        packed(at + "ffn_down_exps", Q6_K, experts, width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
