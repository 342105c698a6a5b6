#!/usr/bin/env python3
"""llama.cpp's side of `cargo xtask serve-bench`: several sequences decoded in one batch, one JSON object on stdout.

Does what llama-batched-bench's text generation does, through the low-level API of llama-cpp-python: each of `--sequences`
sequences gets a prompt of `--prompt` random token ids; then `--decode` times one `llama_decode` of a `llama_batch` with
one random token id of each sequence, logits of every row. Nothing is sampled. A few unmeasured steps go before; each
measured step ends with `llama_synchronize`. The caller chooses flash attention on or off and keeps the better of the two.

Output: {"tokens_per_s"}: tokens of all sequences together.
"""

import argparse
import ctypes
import json
import random
import sys
import time

import llama_cpp as ll

WARM_UP_STEPS = 4


@ll.llama_log_callback
def quiet(_level, _text, _user_data):
    """llama.cpp reports every tensor at load; a failure shows as a null pointer, which is checked."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--decode", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flash-attn", choices=["on", "off"], required=True)
    return parser.parse_args()


def open_context(args):
    """Loads the model and makes a context; returns (model, context) or ends the process with a reason."""
    model_params = ll.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = ll.llama_model_load_from_file(args.model.encode(), model_params)
    if not model:
        sys.exit(f"llama.cpp could not load {args.model}")
    params = ll.llama_context_default_params()
    params.n_seq_max = args.sequences
    # Each sequence has its share; a share is a multiple of 256.
    share = args.prompt + WARM_UP_STEPS + args.decode
    params.n_ctx = args.sequences * (share + -share % 256)
    params.n_batch = 512
    params.n_ubatch = 512
    params.n_threads = args.threads
    params.n_threads_batch = args.threads
    params.flash_attn_type = (
        ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if args.flash_attn == "on" else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    context = ll.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp could not make a context for {args.model}")
    return model, context


def decode(context, batch, rows):
    """Decodes (token, position, sequence, wants logits) rows in one batch and waits for the result."""
    batch.n_tokens = len(rows)
    for at, (token, position, sequence, logits) in enumerate(rows):
        batch.token[at] = token
        batch.pos[at] = position
        batch.n_seq_id[at] = 1
        batch.seq_id[at][0] = sequence
        batch.logits[at] = logits
    status = ll.llama_decode(context, batch)
    if status != 0:
        sys.exit(f"llama_decode returned {status}")
    ll.llama_synchronize(context)


def main():
    args = arguments()
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    ll.llama_backend_init()
    model, context = open_context(args)
    vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    draw = random.Random(1)
    batch = ll.llama_batch_init(512, 0, 1)

    for sequence in range(args.sequences):
        last = args.prompt - 1
        decode(context, batch, [(draw.randrange(vocabulary), at, sequence, at == last) for at in range(args.prompt)])

    def step(position):
        rows = [(draw.randrange(vocabulary), position, sequence, True) for sequence in range(args.sequences)]
        decode(context, batch, rows)

    first = args.prompt + WARM_UP_STEPS
    for position in range(args.prompt, first):
        step(position)
    begin = time.perf_counter()
    for position in range(first, first + args.decode):
        step(position)
    seconds = time.perf_counter() - begin

    ll.llama_batch_free(batch)
    ll.llama_free(context)
    ll.llama_model_free(model)
    print(json.dumps({"tokens_per_s": args.sequences * args.decode / seconds}))


if __name__ == "__main__":
    main()
