#!/usr/bin/env python3
"""llama.cpp's side of `cargo xtask bench`: one model, one JSON object on stdout.

Does what llama-bench's pp and tg tests do, through the low-level API of llama-cpp-python:

* prefill: one `llama_decode` of `--prefill` random token ids into an empty context, logits of the last token only;
* decode: `--decode` calls of `llama_decode` with one random token id each, beginning with an empty context.

One unmeasured run of each goes before `--repeat` measured ones; the fastest counts, as on our side. The timed part ends
with `llama_synchronize`. The caller chooses flash attention on or off and keeps the better of the two.

Output: {"prefill_tokens_per_s", "decode_tokens_per_s", "load_s", "peak_rss_bytes", "version"}.
"""

import argparse
import ctypes
import json
import random
import resource
import sys
import time

import llama_cpp as ll


@ll.llama_log_callback
def quiet(_level, _text, _user_data):
    """llama.cpp reports every tensor at load; a failure shows as a null pointer, which is checked."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeat", type=int, default=3)
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
    params.n_ctx = args.prefill + args.decode
    params.n_batch = max(512, args.prefill)
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


def seconds_for(context, batches):
    """Empties the context, decodes the batches one after another and returns the seconds this took."""
    ll.llama_memory_clear(ll.llama_get_memory(context), True)
    ll.llama_synchronize(context)
    begin = time.perf_counter()
    for tokens in batches:
        status = ll.llama_decode(context, ll.llama_batch_get_one(tokens, len(tokens)))
        if status != 0:
            sys.exit(f"llama_decode returned {status}")
        ll.llama_synchronize(context)
    return time.perf_counter() - begin


def tokens_per_s(context, batches, repeat):
    seconds_for(context, batches)
    count = sum(len(tokens) for tokens in batches)
    return max(count / seconds_for(context, batches) for _ in range(repeat))


def main():
    args = arguments()
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    ll.llama_backend_init()

    begin = time.perf_counter()
    model, context = open_context(args)
    load_s = time.perf_counter() - begin

    vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    draw = random.Random(1)

    def random_tokens(count):
        return (ll.llama_token * count)(*(draw.randrange(vocabulary) for _ in range(count)))

    prefill = tokens_per_s(context, [random_tokens(args.prefill)], args.repeat)
    decode = tokens_per_s(context, [random_tokens(1) for _ in range(args.decode)], args.repeat)
    # Linux gives ru_maxrss in KiB.
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ll.llama_free(context)
    ll.llama_model_free(model)
    print(json.dumps({
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": decode,
        "load_s": load_s,
        "peak_rss_bytes": peak_rss_bytes,
        "version": f"llama-cpp-python {ll.__version__}",
    }))


if __name__ == "__main__":
    main()
