#!/usr/bin/env python3
"""llama.cpp's side of `cargo xtask perplexity`: scores the ids that our side wrote, cut into the same windows.

Each window of `--window` ids is decoded into an empty context; each token of its second half is scored by the logits
after the one before it. Everything else is llama.cpp's default (f16 KV).

Output: {"tokens", "scored", "perplexity", "version"}.
"""

import argparse
import ctypes
import json
import math
import sys

import llama_cpp as ll
import numpy as np

ROWS = 64


@ll.llama_log_callback
def quiet(_level, _text, _user_data):
    """llama.cpp reports every tensor at load; a failure shows as a null pointer, which is checked."""


def surprise(rows, tokens):
    """The sum of -ln p(token) over rows of logits."""
    rows = rows.astype(np.float64)
    most = rows.max(axis=1)
    total = most + np.log(np.exp(rows - most[:, None]).sum(axis=1))
    return float((total - rows[np.arange(len(tokens)), tokens]).sum())


def score(context, vocabulary, window):
    ll.llama_memory_clear(ll.llama_get_memory(context), True)
    first_scored = len(window) // 2
    total, count = 0.0, 0
    for start in range(0, len(window), ROWS):
        part = window[start:start + ROWS]
        batch = ll.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        status = ll.llama_decode(context, batch)
        if status != 0:
            sys.exit(f"llama_decode returned {status}")
        rows = np.ctypeslib.as_array(ll.llama_get_logits(context), shape=(len(part), vocabulary))
        scored = [i for i in range(len(part)) if first_scored <= start + i + 1 < len(window)]
        if scored:
            total += surprise(rows[scored], [window[start + i + 1] for i in scored])
            count += len(scored)
        ll.llama_batch_free(batch)
    return total, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("ids")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    ll.llama_backend_init()
    model_params = ll.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = ll.llama_model_load_from_file(args.model.encode(), model_params)
    params = ll.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = args.window, ROWS, ROWS
    params.n_threads = params.n_threads_batch = args.threads
    context = model and ll.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp could not load {args.model}")
    vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    with open(args.ids) as file:
        ids = [int(line) for line in file]
    total, count = 0.0, 0
    for start in range(0, len(ids) - args.window + 1, args.window):
        nats, scored = score(context, vocabulary, ids[start:start + args.window])
        total, count = total + nats, count + scored
    print(json.dumps({
        "tokens": len(ids),
        "scored": count,
        "perplexity": math.exp(total / count),
        "version": f"llama-cpp-python {ll.__version__}",
    }))


if __name__ == "__main__":
    main()
