#!/usr/bin/env python3
"""llama.cpp's side of `cargo xtask perplexity`: scores the ids that our side wrote, cut into the same windows.

Each window of `--window` ids is decoded into an empty context; each token of its second half is scored by the logits
after the one before it. Everything else is llama.cpp's default (f16 KV).

Output: {"tokens", "scored", "perplexity", "version"}.
"""

import argparse
import json
import math

import llama_cpp as ll
import numpy as np

from llama_cpp_common import decode, fill, load, make_context, vocabulary_size

ROWS = 64


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
        decode(context, fill(batch, [(token, start + i, 0, True) for i, token in enumerate(part)]))
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
    model = load(args.model)
    context = make_context(model, args.window, args.threads, ubatch=ROWS)
    vocabulary = vocabulary_size(model)
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
