"""`anthropic`: messages, whole and streamed, tools, thinking, counting and caching."""

import json
import time
import unittest

import anthropic
from daemon import MODEL, URL, metric, wait_until_idle
from talk import LOOKED_UP, THOUGHT, WEATHER, question

CLIENT = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=60)
# The client has no argument for the temperature any more, and sends what it is given.
LIKELIEST = {"temperature": 0}
TOOLS = [
    {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
]


def said(role, content):
    return {"role": role, "content": content}


def small_talk():
    """A talk that the model ends with a short sentence about Paris."""
    before = [(said("user", asked), said("assistant", answer)) for asked, _, answer in THOUGHT]
    return [message for pair in before for message in pair] + [said("user", question("Paris"))]


def tool_talk():
    messages = []
    for city, found, answer in LOOKED_UP:
        use = {"type": "tool_use", "id": f"toolu_{city}", "name": "get_weather", "input": {"city": city}}
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": found}
        messages += [said("user", question(city)), said("assistant", [use])]
        messages += [said("user", [result]), said("assistant", answer)]
    return [*messages, said("user", question("Paris"))]


def thoughtful_talk():
    messages = []
    for asked, thought, answer in THOUGHT:
        thinking = {"type": "thinking", "thinking": thought, "signature": "x"}
        messages += [said("user", asked), said("assistant", [thinking, {"type": "text", "text": answer}])]
    return [*messages, said("user", question("Paris"))]


def ask(messages=None, **more):
    more = {"model": MODEL, "extra_body": LIKELIEST, "max_tokens": 60, **more}
    return CLIENT.messages.create(messages=messages or small_talk(), **more)


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


class Messages(unittest.TestCase):
    def test_a_whole_answer_has_text_an_end_and_usage(self):
        answer = ask()
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", MODEL))
        self.assertIn("Paris", text(answer))
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assertGreater(answer.usage.output_tokens, 2)

    def test_the_events_come_in_their_order(self):
        events = [event for event in ask(stream=True) if event.type != "ping"]
        types = [event.type for event in events]
        deltas = types.count("content_block_delta")
        self.assertEqual(
            types,
            [
                "message_start",
                "content_block_start",
                *["content_block_delta"] * deltas,
                "content_block_stop",
                "message_delta",
                "message_stop",
            ],
        )
        streamed = "".join(event.delta.text for event in events if event.type == "content_block_delta")
        self.assertEqual(streamed, text(ask()))
        self.assertEqual(events[-2].delta.stop_reason, "end_turn")

    def test_the_stream_helper_has_the_whole_message(self):
        with CLIENT.messages.stream(model=MODEL, messages=small_talk(), max_tokens=60, extra_body=LIKELIEST) as stream:
            streamed = "".join(stream.text_stream)
            final = stream.get_final_message()
        whole = ask()
        self.assertEqual((streamed, text(final)), (text(whole), text(whole)))
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_too_few_tokens_end_with_their_number(self):
        answer = ask(max_tokens=2)
        self.assertEqual((answer.stop_reason, answer.usage.output_tokens), ("max_tokens", 2))

    def test_a_stop_sequence_is_named(self):
        answer = ask(stop_sequences=["never said", " in Paris"])
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", " in Paris"))
        self.assertEqual(text(answer), text(ask()).partition(" in Paris")[0])

    def test_system_is_a_text_or_blocks(self):
        blocks = [{"type": "text", "text": "Be brief."}]
        as_text, as_blocks = ask(system="Be brief."), ask(system=blocks)
        self.assertEqual(text(as_text), text(as_blocks))
        self.assertEqual(as_text.usage.output_tokens, as_blocks.usage.output_tokens)

    def test_a_trailing_assistant_message_is_continued(self):
        answer = ask([*small_talk(), said("assistant", "It is")])
        self.assertTrue(text(answer).startswith(" "), text(answer))


class Tools(unittest.TestCase):
    def test_a_call_is_a_block(self):
        answer = ask(tool_talk(), tools=TOOLS)
        [use] = answer.content
        self.assertEqual((use.type, use.name, use.input), ("tool_use", "get_weather", {"city": "Paris"}))
        self.assertEqual(answer.stop_reason, "tool_use")

    def test_a_streamed_call_is_the_whole_one(self):
        events = list(ask(tool_talk(), tools=TOOLS, stream=True))
        [start] = [event for event in events if event.type == "content_block_start"]
        self.assertEqual((start.content_block.type, start.content_block.name), ("tool_use", "get_weather"))
        parts = [event.delta.partial_json for event in events if event.type == "content_block_delta"]
        self.assertEqual(json.loads("".join(parts)), {"city": "Paris"})
        self.assertEqual([e.delta.stop_reason for e in events if e.type == "message_delta"], ["tool_use"])

    def test_a_result_is_sent_back_and_the_prompt_reused(self):
        first = ask(tool_talk(), tools=TOOLS)
        [use] = first.content
        result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": '{"celsius": 17}'}]}
        second = ask([*tool_talk(), said("assistant", first.content), said("user", [result])], tools=TOOLS)
        self.assertEqual(text(second), "It is 17 degrees in Paris.")
        self.assertGreaterEqual(second.usage.cache_read_input_tokens, usage_total(first.usage))

    def test_a_call_that_would_have_to_be_forced_is_refused(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            ask(tool_talk(), tools=TOOLS, tool_choice={"type": "any"})
        self.assertIn("tool_choice", str(caught.exception))


def usage_total(usage):
    """All tokens of the prompt: Anthropic counts those that were read from and written to the cache apart."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


class Thinking(unittest.TestCase):
    def test_thoughts_are_blocks(self):
        answer = ask(thoughtful_talk(), max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual([block.type for block in answer.content], ["thinking", "text"])
        self.assertEqual(answer.content[0].thinking, "The user asks about Paris.")
        self.assertIn("Paris", text(answer))

    def test_streamed_thoughts_come_first(self):
        thinking = {"type": "enabled", "budget_tokens": 1024}
        with CLIENT.messages.stream(
            model=MODEL, messages=thoughtful_talk(), max_tokens=2000, thinking=thinking, extra_body=LIKELIEST
        ) as stream:
            thoughts = "".join(event.thinking for event in stream if event.type == "thinking")
            final = stream.get_final_message()
        self.assertEqual(thoughts, "The user asks about Paris.")
        self.assertEqual([block.type for block in final.content], ["thinking", "text"])


class Counting(unittest.TestCase):
    def test_counted_tokens_are_those_of_the_usage(self):
        asked = {"messages": tool_talk(), "tools": TOOLS, "system": "Be brief."}
        counted = CLIENT.messages.count_tokens(model=MODEL, **asked)
        self.assertEqual(counted.input_tokens, usage_total(ask(**asked).usage))

    def test_a_marked_prefix_is_made_and_then_read(self):
        words = f"The secret of {time.monotonic_ns()} is kept. " + "The number 7901 is a prime. " * 40
        system = [{"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}]
        first, second = (ask(system=system).usage for _ in range(2))
        self.assertGreater(first.cache_creation_input_tokens, 200)
        self.assertGreater(second.cache_read_input_tokens, usage_total(second) * 0.9)
        self.assertEqual(usage_total(first), usage_total(second))


class Errors(unittest.TestCase):
    def test_a_model_that_is_not_there_is_not_found(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            ask(model="no-such-model")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")

    def test_an_image_is_refused_in_words(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
        with self.assertRaises(anthropic.BadRequestError) as caught:
            ask([said("user", [image, {"type": "text", "text": "What is this?"}])])
        self.assertIn("text", str(caught.exception))

    def test_no_max_tokens_is_refused(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            CLIENT.post("/v1/messages", body={"model": MODEL, "messages": small_talk()}, cast_to=object)
        self.assertIn("max_tokens", str(caught.exception))

    def test_closing_a_stream_frees_its_place(self):
        stream = ask([said("user", "Why is the sky blue?")], stream=True, max_tokens=4000)
        next(event for event in stream if event.type == "content_block_delta")
        self.assertEqual(metric('zllm_jobs{state="running"}'), 1)
        stream.close()
        wait_until_idle(within_s=1)
