"""`ollama`: chat, generate, embed, and what it lists and shows."""

import json
import math
import unittest
import urllib.request

import ollama
from daemon import MODEL, URL, wait_until_idle
from talk import LOOKED_UP, THOUGHT, WEATHER, question

CLIENT = ollama.Client(host=URL, timeout=60)
TOOLS = [{"type": "function", "function": WEATHER}]
OPTIONS = {"temperature": 0, "num_predict": 60}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def small_talk():
    """A talk that the model ends with a short sentence about Paris."""
    before = [(said("user", asked), said("assistant", answer)) for asked, _, answer in THOUGHT]
    return [message for pair in before for message in pair] + [said("user", question("Paris"))]


def tool_talk():
    messages = []
    for city, result, answer in LOOKED_UP:
        call = {"function": {"name": "get_weather", "arguments": {"city": city}}}
        messages += [
            said("user", question(city)),
            said("assistant", "", tool_calls=[call]),
            said("tool", result, tool_name="get_weather"),
            said("assistant", answer),
        ]
    return [*messages, said("user", question("Paris"))]


def chat(messages=None, options=OPTIONS, **more):
    return CLIENT.chat(model=MODEL, messages=messages or small_talk(), options=options, **more)


class Chat(unittest.TestCase):
    def test_a_whole_answer_has_text_an_end_and_counts(self):
        answer = chat()
        self.assertIn("Paris", answer.message.content)
        self.assertEqual((answer.done, answer.done_reason, answer.model), (True, "stop", MODEL))
        self.assertGreater(answer.prompt_eval_count, 20)
        self.assertGreater(answer.eval_count, 2)
        self.assertGreater(answer.total_duration, 0)

    def test_the_streamed_text_is_the_whole_text(self):
        parts = list(chat(stream=True))
        self.assertEqual("".join(part.message.content for part in parts), chat().message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])

    def test_too_few_tokens_end_with_length(self):
        answer = chat(options={"temperature": 0, "num_predict": 2})
        self.assertEqual((answer.done_reason, answer.eval_count), ("length", 2))

    def test_a_call_is_read_whole_and_streamed(self):
        [call] = chat(tool_talk(), tools=TOOLS).message.tool_calls
        self.assertEqual((call.function.name, call.function.arguments), ("get_weather", {"city": "Paris"}))
        parts = list(chat(tool_talk(), tools=TOOLS, stream=True))
        calls = [call for part in parts for call in part.message.tool_calls or []]
        self.assertEqual([dict(found.function.arguments) for found in calls], [{"city": "Paris"}])

    def test_thoughts_are_told_apart(self):
        messages = []
        for asked, thought, answer in THOUGHT:
            messages += [said("user", asked), said("assistant", answer, thinking=thought)]
        answer = chat([*messages, said("user", question("Paris"))], think=True)
        self.assertEqual(answer.message.thinking, "The user asks about Paris.")
        self.assertIn("Paris", answer.message.content)

    def test_leaving_a_stream_frees_its_place(self):
        options = {"temperature": 0, "num_predict": 4000}
        stream = chat([said("user", "Why is the sky blue?")], options=options, stream=True)
        next(stream)
        stream.close()
        wait_until_idle(within_s=1)


class Generate(unittest.TestCase):
    def test_a_prompt_is_answered_whole_and_streamed(self):
        asked = {"model": MODEL, "prompt": "Why is the sky blue?", "options": {"temperature": 0, "num_predict": 24}}
        whole = CLIENT.generate(**asked)
        self.assertTrue(whole.response.strip())
        parts = list(CLIENT.generate(**asked, stream=True))
        self.assertEqual("".join(part.response for part in parts), whole.response)

    def test_a_raw_prompt_goes_on(self):
        options = {"temperature": 0, "num_predict": 8}
        answer = CLIENT.generate(model=MODEL, prompt="The capital of France is", raw=True, options=options)
        self.assertIn("Paris", answer.response)


class Embed(unittest.TestCase):
    def test_texts_have_vectors_of_length_one(self):
        answer = CLIENT.embed(model=MODEL, input=["A cat.", "A dog."])
        self.assertEqual(len(answer.embeddings), 2)
        for vector in answer.embeddings:
            self.assertAlmostEqual(math.sqrt(sum(value * value for value in vector)), 1, places=4)


class Listings(unittest.TestCase):
    def test_the_model_is_listed_shown_and_running(self):
        self.assertIn(f"{MODEL}:latest", [model.model for model in CLIENT.list().models])
        chat(options={"num_predict": 1})
        self.assertIn(f"{MODEL}:latest", [model.model for model in CLIENT.ps().models])
        shown = CLIENT.show(MODEL)
        self.assertIn("tools", shown.capabilities)
        self.assertEqual(shown.details.format, "gguf")
        self.assertEqual(shown.modelinfo["general.architecture"], "llama")

    def test_the_version_is_a_version(self):
        with urllib.request.urlopen(f"{URL}/api/version", timeout=10) as answer:
            self.assertRegex(json.load(answer)["version"], r"^\d+\.\d+\.\d+")


class Errors(unittest.TestCase):
    def test_a_model_that_is_not_there_is_not_found(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            CLIENT.chat(model="no-such-model", messages=small_talk())
        self.assertEqual(caught.exception.status_code, 404)
