"""`openai`: the Responses API: whole, streamed, kept over a restart, in the background and over WebSocket."""

import json
import time
import unittest

import openai
from daemon import MODEL, URL, restart, wait_until_idle
from talk import LOOKED_UP, THOUGHT, WEATHER, question

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=60)
TOOLS = [{"type": "function", "strict": False, **WEATHER}]
# The events of an answer that is one text, the deltas aside.
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def said(role, text):
    return {"role": role, "content": text}


def small_talk():
    """A talk that the model ends with a short sentence about Paris."""
    before = [(said("user", asked), said("assistant", answer)) for asked, _, answer in THOUGHT]
    return [message for pair in before for message in pair] + [said("user", question("Paris"))]


def tool_talk():
    items = []
    for city, result, answer in LOOKED_UP:
        call = {"call_id": f"call_{city}", "name": "get_weather", "arguments": json.dumps({"city": city})}
        items += [
            said("user", question(city)),
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": call["call_id"], "output": result},
            said("assistant", answer),
        ]
    return [*items, said("user", question("Paris"))]


def create(input=None, **more):
    more = {"model": MODEL, "temperature": 0, "max_output_tokens": 60, **more}
    return CLIENT.responses.create(input=input or small_talk(), **more)


def without_deltas(events):
    return [event.type for event in events if not event.type.endswith(".delta")]


class Whole(unittest.TestCase):
    def test_a_response_has_text_and_usage(self):
        response = create()
        self.assertEqual((response.object, response.status, response.model), ("response", "completed", MODEL))
        self.assertIn("Paris", response.output_text)
        self.assertEqual([item.type for item in response.output], ["message"])
        usage = response.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)

    def test_a_text_and_instructions_are_taken(self):
        response = create("Why is the sky blue?", instructions="Be brief.", max_output_tokens=16)
        self.assertEqual(response.status, "incomplete")
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(response.usage.output_tokens, 16)
        self.assertEqual(response.instructions, "Be brief.")

    def test_the_second_time_the_prompt_is_cached(self):
        long = "Tell me about the number 7907. " * 20
        create(long, max_output_tokens=16)
        usage = create(long, max_output_tokens=16).usage
        self.assertGreater(usage.input_tokens_details.cached_tokens, usage.input_tokens * 0.9)

    def test_counted_input_tokens_are_those_of_the_usage(self):
        counted = CLIENT.responses.input_tokens.count(model=MODEL, input=tool_talk(), tools=TOOLS)
        self.assertEqual(counted.input_tokens, create(tool_talk(), tools=TOOLS).usage.input_tokens)

    def test_reasoning_is_an_item_of_its_own(self):
        messages = []
        for asked, thought, answer in THOUGHT:
            content = [{"type": "reasoning_text", "text": thought}]
            messages += [
                said("user", asked),
                {"type": "reasoning", "id": f"rs_{len(messages)}", "summary": [], "content": content},
                said("assistant", answer),
            ]
        response = create([*messages, said("user", question("Paris"))])
        self.assertEqual([item.type for item in response.output], ["reasoning", "message"])
        [content] = response.output[0].content
        self.assertEqual(content.text, "The user asks about Paris.")


class Streams(unittest.TestCase):
    def test_a_text_comes_in_the_order_of_events(self):
        events = list(create(stream=True))
        self.assertEqual(without_deltas(events), TEXT_EVENTS)
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, events[-1].response.output_text)
        self.assertEqual(text, create().output_text)

    def test_the_stream_helper_has_the_final_response(self):
        with CLIENT.responses.stream(model=MODEL, input=small_talk(), temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_text, create().output_text)

    def test_a_call_comes_in_the_order_of_events(self):
        events = list(create(tool_talk(), tools=TOOLS, stream=True))
        self.assertEqual(
            without_deltas(events),
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed",
            ],
        )
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        [call] = events[-1].response.output
        self.assertEqual("".join(deltas), call.arguments)
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertEqual(json.loads(call.arguments), {"city": "Paris"})

    def test_closing_a_stream_frees_its_place(self):
        stream = create("Why is the sky blue?", stream=True, max_output_tokens=4000, store=False)
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        stream.close()
        wait_until_idle(within_s=1)


class Kept(unittest.TestCase):
    def test_a_response_is_retrieved_listed_and_deleted(self):
        made = create()
        self.assertEqual(CLIENT.responses.retrieve(made.id).output_text, made.output_text)
        items = CLIENT.responses.input_items.list(made.id, order="asc").data
        self.assertEqual([item.role for item in items], [message["role"] for message in small_talk()])
        CLIENT.responses.delete(made.id)
        with self.assertRaises(openai.NotFoundError):
            CLIENT.responses.retrieve(made.id)

    def test_what_is_not_stored_is_not_found(self):
        made = create(store=False)
        with self.assertRaises(openai.NotFoundError):
            CLIENT.responses.retrieve(made.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            create([said("user", "And then?")], previous_response_id=made.id)
        self.assertEqual(caught.exception.param, "previous_response_id")

    def test_a_chain_goes_on_over_a_restart(self):
        first = create(small_talk()[:3])
        whole = [*small_talk()[:3], said("assistant", first.output_text), said("user", question("Paris"))]
        expected = create(whole, store=False)
        restart()
        second = create([said("user", question("Paris"))], previous_response_id=first.id)
        self.assertEqual(second.output_text, expected.output_text)
        self.assertEqual(second.usage.input_tokens, expected.usage.input_tokens)
        self.assertEqual(second.previous_response_id, first.id)
        third = create([said("user", question("Cairo"))], previous_response_id=second.id)
        self.assertGreater(third.usage.input_tokens, second.usage.input_tokens)

    def test_a_result_is_sent_back_along_the_chain(self):
        first = create(tool_talk(), tools=TOOLS)
        [call] = first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"celsius": 17}'}
        second = create([result], tools=TOOLS, previous_response_id=first.id)
        self.assertEqual(second.output_text, "It is 17 degrees in Paris.")
        self.assertGreaterEqual(second.usage.input_tokens_details.cached_tokens, first.usage.input_tokens)

    def test_a_conversation_keeps_its_items(self):
        conversation = CLIENT.conversations.create(items=small_talk()[:4])
        answer = create([said("user", question("Paris"))], conversation=conversation.id)
        self.assertEqual(answer.output_text, create().output_text)
        items = CLIENT.conversations.items.list(conversation.id, order="asc").data
        self.assertEqual([item.role for item in items], [*(message["role"] for message in small_talk()), "assistant"])
        CLIENT.conversations.delete(conversation.id)
        with self.assertRaises(openai.NotFoundError):
            CLIENT.conversations.retrieve(conversation.id)


class Background(unittest.TestCase):
    def test_a_response_is_made_in_the_background(self):
        response = create(background=True)
        self.assertIn(response.status, ("queued", "in_progress", "completed"))
        give_up = time.monotonic() + 20
        while response.status in ("queued", "in_progress") and time.monotonic() < give_up:
            time.sleep(0.05)
            response = CLIENT.responses.retrieve(response.id)
        self.assertEqual(response.status, "completed")
        self.assertEqual(response.output_text, create().output_text)

    def test_one_that_is_cancelled_stops(self):
        response = create("Why is the sky blue?", background=True, max_output_tokens=6000)
        self.assertEqual(CLIENT.responses.cancel(response.id).status, "cancelled")
        wait_until_idle(within_s=1)
        self.assertEqual(CLIENT.responses.retrieve(response.id).status, "cancelled")


class WebSocket(unittest.TestCase):
    def turn(self, connection, input, **more):
        connection.response.create(model=MODEL, input=input, temperature=0, max_output_tokens=60, **more)
        events = []
        for event in connection:
            events.append(event)
            if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
                return events

    def test_one_connection_has_many_turns(self):
        with CLIENT.responses.connect() as connection:
            first = self.turn(connection, small_talk())
            self.assertEqual(without_deltas(first), TEXT_EVENTS)
            made = first[-1].response
            second = self.turn(connection, [said("user", question("Cairo"))], previous_response_id=made.id)
            self.assertEqual(second[-1].type, "response.completed")
            self.assertGreater(second[-1].response.usage.input_tokens, made.usage.input_tokens)
        self.assertEqual(made.output_text, create().output_text)

    def test_an_error_leaves_the_connection_open(self):
        with CLIENT.responses.connect() as connection:
            connection.response.create(model="no-such-model", input="Hello")
            self.assertEqual(connection.recv().type, "error")
            self.assertEqual(self.turn(connection, small_talk())[-1].type, "response.completed")


class Errors(unittest.TestCase):
    def test_a_model_that_is_not_there_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            create(model="no-such-model")

    def test_an_unknown_item_is_refused_by_name(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            create([{"type": "telepathy", "content": "x"}])
        self.assertIn("telepathy", str(caught.exception))

    def test_a_tool_that_nobody_runs_is_left_out(self):
        response = create(tools=[{"type": "web_search"}])
        self.assertEqual(response.output_text, create().output_text)
