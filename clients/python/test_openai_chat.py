"""`openai`: chat completions, whole and streamed."""

import asyncio
import json
import threading
import time
import unittest

import openai
from daemon import MODEL, URL, metric, wait_until_idle
from talk import LOOKED_UP, THOUGHT, WEATHER, question

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=60)
SKY = [{"role": "user", "content": "Why is the sky blue?"}]
TOOLS = [{"type": "function", "function": WEATHER}]
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def ask(messages=SKY, **more):
    more = {"model": MODEL, "temperature": 0, "max_tokens": 48, **more}
    return CLIENT.chat.completions.create(messages=messages, **more)


def streamed(messages=SKY, **more):
    """The chunks, all of which must belong to one answer."""
    chunks = list(ask(messages, stream=True, **more))
    assert len({chunk.id for chunk in chunks}) == 1, "one answer has several ids"
    return chunks


def text(chunks, choice=0):
    choices = [found for chunk in chunks for found in chunk.choices if found.index == choice]
    return "".join(found.delta.content or "" for found in choices)


def ends(chunks):
    return [found.finish_reason for chunk in chunks for found in chunk.choices if found.finish_reason]


def used_tool(city, result, answer):
    call = {"id": f"call_{city}", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return [
        {"role": "user", "content": question(city)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
        {"role": "assistant", "content": answer},
    ]


def tool_talk():
    before = [message for use in LOOKED_UP for message in used_tool(*use)]
    return [*before, {"role": "user", "content": question("Paris")}]


def thoughtful_talk():
    messages = []
    for asked, thought, answer in THOUGHT:
        messages += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": answer, "reasoning_content": thought},
        ]
    return [*messages, {"role": "user", "content": question("Paris")}]


class Models(unittest.TestCase):
    def test_the_list_has_the_model(self):
        self.assertIn(MODEL, [model.id for model in CLIENT.models.list()])

    def test_one_model_is_retrieved_by_name(self):
        model = CLIENT.models.retrieve(MODEL)
        self.assertEqual((model.id, model.object), (MODEL, "model"))

    def test_a_model_that_is_not_there_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            CLIENT.models.retrieve("no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")


class Chat(unittest.TestCase):
    def test_a_whole_answer_has_text_an_end_and_usage(self):
        answer = ask()
        self.assertEqual((answer.object, answer.model), ("chat.completion", MODEL))
        self.assertTrue(answer.choices[0].message.content.strip())
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 48)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 48)

    def test_the_streamed_text_is_the_whole_text(self):
        chunks = streamed()
        self.assertEqual(text(chunks), ask().choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(ends(chunks), ["length"])
        self.assertGreater(len(chunks), 10)

    def test_a_stream_has_usage_only_when_asked(self):
        for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
            self.assertFalse([chunk for chunk in streamed(**options) if chunk.usage], options)
        chunks = streamed(stream_options={"include_usage": True})
        self.assertEqual([index for index, chunk in enumerate(chunks) if chunk.usage], [len(chunks) - 1])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 48)

    def test_the_stream_helper_has_the_same_answer(self):
        messages = [message for message in thoughtful_talk() if message.pop("reasoning_content", True)]
        with CLIENT.chat.completions.stream(model=MODEL, messages=messages, temperature=0) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "content.delta")
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertEqual(deltas, final.choices[0].message.content)
        self.assertEqual(deltas, ask(messages).choices[0].message.content)

    def test_log_probabilities_are_of_the_text(self):
        choice = ask(logprobs=True, top_logprobs=3).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual("".join(token.token for token in tokens), choice.message.content)
        for token in tokens:
            self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token, "at temperature 0 the likeliest is drawn")
            self.assertLessEqual(token.logprob, 0)

    def test_streamed_log_probabilities_are_the_whole_ones(self):
        chunks = streamed(logprobs=True)
        parts = [found.logprobs.content for chunk in chunks for found in chunk.choices if found.logprobs]
        tokens = [(token.token, token.logprob) for part in parts for token in part or []]
        whole = ask(logprobs=True).choices[0].logprobs.content
        self.assertEqual(tokens, [(token.token, token.logprob) for token in whole])

    def test_a_stop_string_ends_the_text_before_it(self):
        whole = ask().choices[0].message.content
        stop = whole[10:14]
        choice = ask(stop=["never said", stop]).choices[0]
        self.assertEqual(choice.message.content, whole[: whole.index(stop)])
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual(text(streamed(stop=stop)), choice.message.content)

    def test_n_choices_are_n_answers(self):
        drawn = {"n": 3, "temperature": 1, "seed": 7}
        answer = ask(**drawn)
        texts = [choice.message.content for choice in answer.choices]
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertEqual(len(set(texts)), 3)
        chunks = streamed(**drawn)
        self.assertEqual([text(chunks, choice) for choice in range(3)], texts)
        self.assertEqual(len(ends(chunks)), 3)

    def test_a_seed_draws_the_same_again(self):
        draw = lambda seed: ask(temperature=1, seed=seed).choices[0].message.content
        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_a_token_is_forced_by_its_bias(self):
        tokens = ask(max_tokens=4, logit_bias={"1000": 100}, logprobs=True).choices[0].logprobs.content
        self.assertEqual(len({token.token for token in tokens}), 1)
        self.assertEqual(len(tokens), 4)

    def test_parts_of_text_and_all_roles_are_taken(self):
        parts = [{"type": "text", "text": "Why is the sky"}, {"type": "text", "text": "blue?"}]
        answer = ask([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
        as_system = ask([{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}])
        self.assertEqual(answer.choices[0].message.content, as_system.choices[0].message.content)

    def test_a_trailing_assistant_message_is_continued(self):
        begun = "The sky is blue because of"
        answers = []
        for content in (begun, [{"type": "text", "text": begun}]):
            answers.append(ask([*SKY, {"role": "assistant", "content": content}]).choices[0].message.content)
        self.assertEqual(answers[0], answers[1])
        self.assertFalse(answers[0].startswith("The sky"), answers[0])
        self.assertEqual(answers[0][0], " ", "it goes on with the next word")

    def test_the_second_time_the_prompt_is_cached(self):
        long = [{"role": "user", "content": "Tell me about the number 7919. " * 20}]
        ask(long, max_tokens=1)
        usage = ask(long, max_tokens=1).usage
        self.assertGreater(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens * 0.9)

    def test_four_at_once_are_as_one_alone(self):
        alone = ask().choices[0].message.content

        async def together():
            async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
                one = lambda: client.chat.completions.create(
                    model=MODEL, messages=SKY, temperature=0, max_tokens=48
                )
                return await asyncio.gather(*(one() for _ in range(4)))

        answers = asyncio.run(together())
        self.assertEqual([answer.choices[0].message.content for answer in answers], [alone] * 4)

    def test_each_answer_has_a_request_id(self):
        ids = {ask(max_tokens=1)._request_id for _ in range(2)}
        self.assertEqual(len(ids - {None, ""}), 2)


class Tools(unittest.TestCase):
    def test_a_call_is_read_from_a_whole_answer(self):
        choice = ask(tool_talk(), tools=TOOLS).choices[0]
        [call] = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        self.assertTrue(call.id)
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertFalse(choice.message.content)

    def test_a_streamed_call_is_the_whole_one(self):
        chunks = streamed(tool_talk(), tools=TOOLS)
        deltas = [delta for chunk in chunks for found in chunk.choices for delta in found.delta.tool_calls or []]
        self.assertEqual({delta.index for delta in deltas}, {0})
        self.assertEqual([delta.function.name for delta in deltas if delta.function.name], ["get_weather"])
        self.assertEqual(len([delta.id for delta in deltas if delta.id]), 1)
        arguments = "".join(delta.function.arguments or "" for delta in deltas)
        [call] = ask(tool_talk(), tools=TOOLS).choices[0].message.tool_calls
        self.assertEqual(arguments, call.function.arguments)
        self.assertEqual(ends(chunks), ["tool_calls"])
        self.assertEqual(text(chunks), "")

    def test_a_result_is_sent_back_and_the_prompt_reused(self):
        first = ask(tool_talk(), tools=TOOLS)
        [call] = first.choices[0].message.tool_calls
        back = [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 17}'}]
        second = ask([*tool_talk(), *back], tools=TOOLS)
        self.assertEqual(second.choices[0].message.content, "It is 17 degrees in Paris.")
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens)

    def test_no_calls_are_read_when_none_may_be_made(self):
        choice = ask(tool_talk(), tools=TOOLS, tool_choice="none").choices[0]
        self.assertFalse(choice.message.tool_calls)
        self.assertEqual(choice.finish_reason, "stop")

    def test_a_call_that_would_have_to_be_forced_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask(tool_talk(), tools=TOOLS, tool_choice="required")
        self.assertEqual(caught.exception.param, "tool_choice")

    def test_reasoning_is_told_apart(self):
        message = ask(thoughtful_talk()).choices[0].message
        self.assertEqual(message.reasoning_content, "The user asks about Paris.")
        self.assertIn("Paris", message.content)
        self.assertNotIn("think", message.content)

    def test_streamed_reasoning_is_the_whole_one(self):
        chunks = streamed(thoughtful_talk())
        deltas = [found.delta for chunk in chunks for found in chunk.choices]
        thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        self.assertEqual(thought, "The user asks about Paris.")
        self.assertEqual(text(chunks), ask(thoughtful_talk()).choices[0].message.content)


class Errors(unittest.TestCase):
    def refused(self, param, messages=SKY, **more):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask(messages, **more)
        self.assertEqual(caught.exception.param, param)
        self.assertEqual(caught.exception.type, "invalid_request_error")
        return caught.exception

    def test_a_model_that_is_not_there_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            ask(model="no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_a_value_out_of_range_names_its_field(self):
        self.assertIn("temperature", str(self.refused("temperature", temperature=-1)))
        self.refused("top_logprobs", logprobs=True, top_logprobs=21)

    def test_a_value_of_the_wrong_type_names_its_field(self):
        self.refused("max_tokens", max_tokens="many")

    def test_no_messages_are_refused(self):
        self.refused("messages", messages=[])

    def test_an_image_is_refused_in_words(self):
        content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
        self.assertIn("text", str(self.refused("messages[0].content", [{"role": "user", "content": content}])))

    def test_a_schema_is_refused_not_ignored(self):
        schema = {"name": "x", "schema": {"type": "object"}}
        self.refused("response_format", response_format={"type": "json_schema", "json_schema": schema})

    def test_a_prompt_beyond_the_context_has_both_numbers(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask([{"role": "user", "content": "word " * 9000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertRegex(str(caught.exception), r"\d{4}.*\d{4}")


class Load(unittest.TestCase):
    def test_closing_a_stream_frees_its_place(self):
        stream = ask(stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
        next(iter(stream))
        self.assertEqual(metric('zllm_jobs{state="running"}'), 1)
        stream.close()
        wait_until_idle(within_s=1)

    def test_leaving_a_whole_answer_frees_its_place(self):
        with self.assertRaises(openai.APITimeoutError):
            CLIENT.with_options(timeout=0.5).chat.completions.create(
                model=MODEL, messages=SKY, max_tokens=4000, extra_body={"ignore_eos": True}
            )
        wait_until_idle(within_s=1)

    def test_a_full_queue_is_a_rate_limit_that_retries_outlast(self):
        refused, answered, others = [], [], []

        def one(number):
            messages = [{"role": "user", "content": f"Number {number}."}]
            try:
                ask(messages, max_tokens=64, extra_body={"ignore_eos": True})
                answered.append(number)
            except openai.RateLimitError as error:
                refused.append(error)
            except Exception as error:
                others.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        patient = CLIENT.with_options(max_retries=8).chat.completions.create(
            model=MODEL, messages=SKY, temperature=0, max_tokens=8
        )
        for thread in threads:
            thread.join()
        self.assertEqual(others, [])
        self.assertTrue(refused, "64 requests at once found room in a queue of 24")
        self.assertTrue(answered)
        self.assertTrue(patient.choices[0].message.content)
        self.assertEqual(refused[0].code, "rate_limit_exceeded")
        self.assertGreater(float(refused[0].response.headers["retry-after"]), 0)
