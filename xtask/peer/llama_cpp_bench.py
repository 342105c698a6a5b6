#!/usr/bin/env python3
"""llama.cpp's side of `cargo xtask bench` and `serve-bench`: one model, one JSON object on stdout.

The same tests as engine/examples/bench.rs, under the same names, in the same order:

* `prefill N`: one `llama_decode` of N random token ids into an empty context, logits of the last token only; at each
  depth above 0 also `prefill 512 at D`. They run once with each `--ubatch`; the fastest counts.
* `decode N at D`: N calls of `llama_decode` with one random token id each, beginning at depth D.
* `S sessions`: steps of one random token id of each of S sequences, logits of every row, after a prompt of 8 and a few
  unmeasured steps; as llama-batched-bench does. Tokens of all sequences together.

Nothing is sampled. Rates are tokens per second, the fastest of `--repeat`; each measured part ends with
`llama_synchronize`. The caller chooses flash attention on or off and keeps the better. Memory is the peak after the tests
without a depth, before longer contexts and more sequences.

Output: {"load_s", "peak_rss_bytes", "tests": {name: tokens per second}}.
"""

import argparse
import json
import random
import resource
import time

import llama_cpp as ll

from llama_cpp_common import decode, fill, load, make_context, vocabulary_size

DEEP_PREFILL_TOKENS = 512
PROMPT_TOKENS = 8
WARM_UP_STEPS = 4


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=numbers, default=[128, 512, 2048])
    parser.add_argument("--depth", type=numbers, default=[0, 2048])
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--sessions", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--ubatch", type=numbers, default=[512])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flash-attn", choices=["on", "off"], required=True)
    return parser.parse_args()


class Bench:
    def __init__(self, args, model):
        self.args, self.model = args, model
        self.vocabulary = vocabulary_size(model)
        self.draw = random.Random(1)
        self.tests = {}

    def context(self, tokens, ubatch=512, sequences=1, unified=False):
        args = self.args
        context = make_context(
            self.model,
            tokens,
            args.threads,
            flash_attn=args.flash_attn,
            ubatch=ubatch,
            sequences=sequences,
            unified=unified,
        )
        if sequences == 1:
            self.feed(context, 0, [PROMPT_TOKENS])
        return context

    def feed(self, context, depth, counts):
        """Forgets what is behind `depth`, then decodes so many random tokens, call by call; returns the seconds."""
        memory = ll.llama_get_memory(context)
        if depth == 0:
            ll.llama_memory_clear(memory, True)
        elif ll.llama_memory_seq_pos_max(memory, 0) + 1 < depth or not ll.llama_memory_seq_rm(memory, 0, depth, -1):
            self.feed(context, 0, [depth])
        parts = [(ll.llama_token * n)(*(self.draw.randrange(self.vocabulary) for _ in range(n))) for n in counts]
        begin = time.perf_counter()
        for tokens in parts:
            decode(context, ll.llama_batch_get_one(tokens, len(tokens)))
        return time.perf_counter() - begin

    def measure(self, context, kind, depth, counts):
        seconds = min(self.feed(context, depth, counts) for _ in range(self.args.repeat))
        name = f"{kind} {sum(counts)}" + (f" at {depth}" if depth else "")
        self.tests[name] = max(self.tests.get(name, 0), sum(counts) / seconds)

    def measure_prefills(self, context, depth, counts):
        for count in counts:
            self.measure(context, "prefill", depth, [count])

    def measure_sessions(self, sequences, unified):
        steps = self.args.steps
        context = self.context(PROMPT_TOKENS + WARM_UP_STEPS + steps, sequences=sequences, unified=unified)
        batch = ll.llama_batch_init(max(sequences, PROMPT_TOKENS), 0, 1)
        token = lambda: self.draw.randrange(self.vocabulary)

        def run(first, count):
            for at in range(first, first + count):
                decode(context, fill(batch, [(token(), at, sequence, True) for sequence in range(sequences)]))

        best = float("inf")
        for _ in range(self.args.repeat):
            ll.llama_memory_clear(ll.llama_get_memory(context), True)
            for sequence in range(sequences):
                last = PROMPT_TOKENS - 1
                decode(context, fill(batch, [(token(), at, sequence, at == last) for at in range(PROMPT_TOKENS)]))
            run(PROMPT_TOKENS, WARM_UP_STEPS)
            begin = time.perf_counter()
            run(PROMPT_TOKENS + WARM_UP_STEPS, steps)
            best = min(best, time.perf_counter() - begin)
        name = f"{sequences} sessions"
        self.tests[name] = max(self.tests.get(name, 0), sequences * steps / best)
        ll.llama_batch_free(batch)
        ll.llama_free(context)


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main():
    args = arguments()
    deep = [depth for depth in args.depth if depth > 0]
    short = [count for count in args.prefill if count <= DEEP_PREFILL_TOKENS]
    long = [count for count in args.prefill if count > DEEP_PREFILL_TOKENS]
    flat_tokens = max(short + [args.decode if 0 in args.depth else PROMPT_TOKENS])
    deep_tokens = max(long + [depth + max(DEEP_PREFILL_TOKENS, args.decode) for depth in deep] + [0])

    before_bytes = resident_bytes()
    begin = time.perf_counter()
    model = load(args.model)
    bench = Bench(args, model)
    first = make_context(model, flat_tokens, args.threads, flash_attn=args.flash_attn, ubatch=args.ubatch[0])
    load_s = time.perf_counter() - begin
    bench.feed(first, 0, [PROMPT_TOKENS])

    bench.measure_prefills(first, 0, short)
    if 0 in args.depth:
        bench.measure(first, "decode", 0, [1] * args.decode)
    # Linux gives ru_maxrss in KiB. What Python takes is not llama.cpp's.
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes
    ll.llama_free(first)

    for at, ubatch in enumerate(args.ubatch):
        context = bench.context(max(flat_tokens, deep_tokens), ubatch=ubatch)
        if at > 0:
            bench.measure_prefills(context, 0, short)
        bench.measure_prefills(context, 0, long)
        for depth in deep:
            bench.measure_prefills(context, depth, [DEEP_PREFILL_TOKENS])
            if at == 0:
                bench.measure(context, "decode", depth, [1] * args.decode)
        ll.llama_free(context)
    for sequences in args.sessions:
        for unified in [False, True][: sequences]:
            bench.measure_sessions(sequences, unified)
    ll.llama_model_free(model)
    print(json.dumps({"load_s": load_s, "peak_rss_bytes": peak_rss_bytes, "tests": bench.tests}))


if __name__ == "__main__":
    main()
