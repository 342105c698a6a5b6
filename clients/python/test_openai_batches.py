"""`openai`: files, and batches over the durable queue."""

import io
import json
import time
import unittest

import openai
from daemon import MODEL, URL, restart

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=60)


CHAT = "/v1/chat/completions"


def requests(count, max_tokens=8):
    def body(number):
        messages = [{"role": "user", "content": f"Tell me about the number {number}."}]
        return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": max_tokens}

    return lines(CHAT, map(body, range(count)))


def lines(url, bodies):
    def line(number, body):
        return json.dumps({"custom_id": f"n{number}", "method": "POST", "url": url, "body": body}).encode()

    return b"\n".join(line(number, body) for number, body in enumerate(bodies))


def upload(content, purpose="batch"):
    return CLIENT.files.create(file=("requests.jsonl", io.BytesIO(content)), purpose=purpose)


def make(content, endpoint=CHAT):
    input_file = upload(content)
    return CLIENT.batches.create(input_file_id=input_file.id, endpoint=endpoint, completion_window="24h")


def wait(batch, within_s=60):
    give_up = time.monotonic() + within_s
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < give_up, f"the batch is still {batch.status} after {within_s} s"
        time.sleep(0.1)
        batch = CLIENT.batches.retrieve(batch.id)
    return batch


class Files(unittest.TestCase):
    def test_a_file_comes_back_as_it_was(self):
        content = requests(3)
        made = upload(content)
        self.assertEqual((made.object, made.bytes, made.purpose), ("file", len(content), "batch"))
        self.assertEqual(CLIENT.files.retrieve(made.id).filename, "requests.jsonl")
        self.assertEqual(CLIENT.files.content(made.id).read(), content)
        self.assertIn(made.id, [found.id for found in CLIENT.files.list()])
        self.assertTrue(CLIENT.files.delete(made.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            CLIENT.files.retrieve(made.id)


class Batches(unittest.TestCase):
    def test_each_request_is_answered_once(self):
        batch = wait(make(requests(5)))
        self.assertEqual(batch.status, "completed")
        self.assertEqual((batch.request_counts.completed, batch.request_counts.failed), (5, 0))
        output = CLIENT.files.content(batch.output_file_id).read().decode()
        answers = [json.loads(line) for line in output.splitlines()]
        self.assertEqual(sorted(answer["custom_id"] for answer in answers), [f"n{n}" for n in range(5)])
        first = next(answer for answer in answers if answer["custom_id"] == "n0")
        alone = CLIENT.chat.completions.create(**json.loads(requests(1))["body"])
        text = first["response"]["body"]["choices"][0]["message"]["content"]
        self.assertEqual(text, alone.choices[0].message.content)

    def test_responses_are_made_and_kept(self):
        def body(number):
            text = f"Tell me about the number {number}."
            return {"model": MODEL, "input": text, "temperature": 0, "max_output_tokens": 8}

        batch = wait(make(lines("/v1/responses", map(body, range(3))), "/v1/responses"))
        self.assertEqual((batch.status, batch.request_counts.completed), ("completed", 3))
        output = CLIENT.files.content(batch.output_file_id).read().decode()
        for line in map(json.loads, output.splitlines()):
            kept = CLIENT.responses.retrieve(line["response"]["body"]["id"])
            alone = CLIENT.responses.create(**body(int(line["custom_id"][1:])), store=False)
            self.assertEqual((kept.output_text, kept.status), (alone.output_text, alone.status))

    def test_a_batch_goes_on_over_a_restart(self):
        batch = make(requests(10, max_tokens=100))
        self.assertNotEqual(CLIENT.batches.retrieve(batch.id).status, "completed")
        restart()
        batch = wait(CLIENT.batches.retrieve(batch.id))
        self.assertEqual((batch.status, batch.request_counts.completed), ("completed", 10))

    def test_a_cancelled_batch_ends(self):
        batch = make(requests(10, max_tokens=400))
        CLIENT.batches.cancel(batch.id)
        self.assertEqual(wait(CLIENT.batches.retrieve(batch.id), within_s=10).status, "cancelled")

    def test_the_list_has_a_batch(self):
        batch = wait(make(requests(1)))
        self.assertIn(batch.id, [found.id for found in CLIENT.batches.list()])
