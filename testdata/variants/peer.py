"""Logits of an independent engine: llama.cpp, through the Python package llama-cpp-python 0.3.36, run in f32.

Weights are expanded to f32 in a copy of the file, the KV cache is f32, flash attention is off, so that what our oracle
differs by is rounding. The low-level interface is used, because the high-level one overrides the file's yarn settings.
"""

import ctypes
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize

PROMPT = [
    65, 91, 7, 119, 63, 13, 40, 28, 95, 120, 63, 97, 26, 63, 3, 55, 104, 71, 46, 99, 40, 18, 35, 113, 32, 33, 0, 1, 53, 55,
    42, 42, 74, 80, 50, 52, 46, 50, 98, 76,
]  # fmt: skip
GREEDY = 8
CONTEXT = 256
"""Positions; the engine rounds up to 256. It chooses between the two lists of longrope by this."""


def fields(reader):
    """Every metadata entry but the three of the container: name, type, element type of an array, value."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF."):
            continue
        sub = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        yield field.name, field.types[0], sub, field.contents()


def write(path, metadata, tensors):
    """`metadata`: name -> (type, element type, value); `tensors`: name -> array, or (bytes, block type)."""
    writer = GGUFWriter(path, metadata["general.architecture"][2])
    for name, (kind, sub, value) in metadata.items():
        if name != "general.architecture":
            writer.add_key_value(name, value, kind, sub)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path):
    """The tokens fed (the prompt and what the engine then finds likeliest) and the logits after each of them."""
    reader = GGUFReader(path)
    metadata = {name: (kind, sub, value) for name, kind, sub, value in fields(reader)}
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    if "output.scale" in tensors:
        # The engine looks for this one only beside packed weights.
        tensors["output.weight"] *= tensors.pop("output.scale")
    with tempfile.TemporaryDirectory() as folder:
        expanded = Path(folder) / "expanded.gguf"
        write(expanded, metadata, tensors)
        return _run(expanded)


@llama_cpp.llama_log_callback
def _quiet(level, text, _):
    if level >= 4:  # errors
        print(text.decode(errors="replace"), end="")


def _run(path):
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"{path} was not loaded"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = CONTEXT
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.swa_full = True
    ctx = llama_cpp.llama_init_from_model(model, params)
    assert ctx, f"{path} has no context"
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    tokens, rows = list(PROMPT), []
    batch = llama_cpp.llama_batch_init(len(PROMPT), 0, 1)
    fed = 0
    while len(rows) < len(PROMPT) + GREEDY:
        new = tokens[fed:]
        batch.n_tokens = len(new)
        for i, token in enumerate(new):
            batch.token[i], batch.pos[i], batch.logits[i] = token, fed + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama_cpp.llama_decode(ctx, batch) == 0
        for i in range(len(new)):
            rows.append(np.array(llama_cpp.llama_get_logits_ith(ctx, i)[:width], dtype=np.float32))
        fed += len(new)
        tokens.append(int(rows[-1].argmax()))
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(ctx)
    llama_cpp.llama_model_free(model)
    return tokens[: len(rows)], np.stack(rows)
