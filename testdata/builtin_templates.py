"""Writes builtin_templates.json: what the built-in templates of zllm must give.

`python builtin_templates.py VENDOR_DIR` needs jinja2 (3.1) and llama-cpp-python (0.3.36). Where a vendor publishes a
template that a model of theirs is used with, it is VENDOR_DIR/NAME.jinja (the `chat_template` of the model named below)
and Python's Jinja2 renders it; the others are rendered by llama.cpp's own built-in of the name given below. Which of
the two it was stands in the result. llama.cpp writes no begin token, so `bos` is empty there."""

import ctypes
import json
import pathlib
import sys

import jinja2
import jinja2.sandbox
import llama_cpp

VENDORS = {
    "command-r": ("CohereForAI/c4ai-command-r-plus, default", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek3": ("deepseek-ai/DeepSeek-V3", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "exaone3": ("LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct", "[BOS]", "[|endofturn|]"),
    "gemma": ("google/gemma-3-1b-it", "<bos>", "<eos>"),
    "gpt-oss": ("openai/gpt-oss-120b", "<|startoftext|>", "<|return|>"),
    "llama2": ("meta-llama/Llama-2-7b-chat-hf", "<s>", "</s>"),
    "mistral-v1": ("mistralai/Mistral-7B-Instruct-v0.2", "<s>", "</s>"),
    "mistral-v3": ("mistralai/Mistral-Large-Instruct-2407", "<s>", "</s>"),
    "mistral-v3-tekken": ("mistralai/Mistral-Nemo-Instruct-2407", "<s>", "</s>"),
    "olmo2": ("allenai/OLMo-2-1124-7B-Instruct", "<|endoftext|>", "<|endoftext|>"),
    "phi3": ("microsoft/Phi-3.5-mini-instruct", "<s>", "<|endoftext|>"),
    "smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct", "<|im_start|>", "<|im_end|>"),
}
PEERS = {
    "chatml": ("chatml", "</s>"),
    "deepseek": ("deepseek", "<|EOT|>"),
    "deepseek2": ("deepseek2", "<｜end▁of▁sentence｜>"),
    "falcon3": ("falcon3", "<|endoftext|>"),
    "glm4": ("chatglm4", "<|endoftext|>"),
    "granite": ("granite", "<|end_of_text|>"),
    "llama3": ("llama3", "<|eot_id|>"),
    "llama4": ("llama4", "<|eot|>"),
    "minicpm": ("minicpm", "</s>"),
    "mistral-v7": ("mistral-v7", "</s>"),
    "mistral-v7-tekken": ("mistral-v7-tekken", "</s>"),
    "openchat": ("openchat", "<|end_of_turn|>"),
    "phi4": ("phi4", "<|im_end|>"),
    "vicuna": ("vicuna", "</s>"),
    "zephyr": ("zephyr", "<|endoftext|>"),
}
NOW = 1_720_137_662
TODAY = "2024-07-05"


def conversation(*contents, system=None):
    roles = ["user", "assistant"]
    turns = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


CONVERSATIONS = {
    "one": conversation("Hello"),
    "system": conversation("Hello", system="Be brief."),
    "turns": conversation("Hello", "Hi there", "Who are you?", "An assistant.", "Really?"),
    "system_turns": conversation("Hello", "Hi there", "Who are you?", system="Be brief."),
    "spaces": conversation("  \n Hello\t\n", " Hi there  ", "\n\nmore \n", system="  Be brief.\n "),
    "unicode": conversation("Grüße, 世界 🌍", "né\u0301 <b>&amp;</b>", "ok", system="Antworte auf Deutsch 🇩🇪"),
    "empty": conversation("", "", "again", system=""),
    "answered": conversation("Hello", "Hi there"),
    "two_users": [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Anybody?"}],
}


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = lambda layout: {"%Y-%m-%d": TODAY}[layout]


def vendor(source, messages, bos, eos, generate):
    try:
        return {"expect": environment.from_string(source).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=generate, bos_token=bos, eos_token=eos
        )}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}


def peer(name, messages, generate):
    array = (llama_cpp.llama_chat_message * len(messages))(
        *[(m["role"].encode(), m["content"].encode()) for m in messages]
    )
    buffer = ctypes.create_string_buffer(1 << 16)
    size = llama_cpp.llama_chat_apply_template(name.encode(), array, len(messages), generate, buffer, len(buffer))
    assert 0 <= size <= len(buffer), (name, size)
    return {"expect": buffer.raw[:size].decode()}


folder = pathlib.Path(sys.argv[1])
templates = {}
for name in sorted(VENDORS | PEERS):
    if name in VENDORS:
        model, bos, eos = VENDORS[name]
        text = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        source = f"chat_template of {model}, rendered by Jinja2 {jinja2.__version__}"
    else:
        builtin, eos = PEERS[name]
        bos = ""
        source = f"llama.cpp's {builtin} (llama-cpp-python {llama_cpp.__version__})"
    cases = []
    for key, messages in CONVERSATIONS.items():
        for generate in [True, False]:
            if name in VENDORS:
                result = vendor(text, messages, bos, eos, generate)
            else:
                result = peer(builtin, messages, generate)
            cases.append({"messages": key, "add_generation_prompt": generate, **result})
    templates[name] = {"source": source, "bos": bos, "eos": eos, "cases": cases}
result = {"now_unix_s": NOW, "messages": CONVERSATIONS, "templates": templates}
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
