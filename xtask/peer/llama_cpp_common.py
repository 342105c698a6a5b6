"""What the scripts here share: loading a model and decoding with llama.cpp, through llama-cpp-python's low-level API.

Everything that fails ends the process with a reason. llama.cpp's own log is off: it reports every tensor at load.
"""

import ctypes
import sys

import llama_cpp as ll

FLASH_ATTENTION = {
    "auto": ll.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": ll.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": ll.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


@ll.llama_log_callback
def quiet(_level, _text, _user_data):
    """A failure shows as a null pointer or a status, which are checked."""


def load(path):
    """The model, all of it on the CPU."""
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    ll.llama_backend_init()
    params = ll.llama_model_default_params()
    params.n_gpu_layers = 0
    model = ll.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"llama.cpp could not load {path}")
    return model


def vocabulary_size(model):
    return ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))


def make_context(model, tokens, threads, *, flash_attn="auto", ubatch=512, sequences=1, unified=False):
    """A context of `tokens` tokens for each of `sequences`, which may have one buffer; `ubatch` rows are computed at a time."""
    params = ll.llama_context_default_params()
    # Each sequence has its share, a multiple of 256.
    params.n_ctx = sequences * (tokens + -tokens % 256)
    params.n_seq_max = sequences
    params.n_batch = max(tokens, sequences)
    params.n_ubatch = ubatch
    params.n_threads = params.n_threads_batch = threads
    params.kv_unified = unified
    # As its own tools have it: layers with a window keep no more than they need.
    params.swa_full = False
    params.flash_attn_type = FLASH_ATTENTION[flash_attn]
    context = ll.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp could not make a context of {sequences} x {tokens} tokens")
    return context


def decode(context, batch):
    """One `llama_decode`, and its end."""
    status = ll.llama_decode(context, batch)
    if status != 0:
        sys.exit(f"llama_decode returned {status}")
    ll.llama_synchronize(context)


def fill(batch, rows):
    """Puts (token, position, sequence, wants logits) rows into a batch of `llama_batch_init`; returns it."""
    batch.n_tokens = len(rows)
    for at, (token, position, sequence, logits) in enumerate(rows):
        batch.token[at] = token
        batch.pos[at] = position
        batch.n_seq_id[at] = 1
        batch.seq_id[at][0] = sequence
        batch.logits[at] = logits
    return batch
