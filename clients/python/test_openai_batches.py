"""`openai`: files, and batches over the durable queue."""

import io
import json
import time
import unittest

import openai
from daemon import MODEL, URL, restart

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=60)


def requests(count, max_tokens=8):
    def line(number):
        messages = [{"role": "user", "content": f"Tell me about the number {number}."}]
        body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": max_tokens}
        request = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        return json.dumps(request).encode()

    return b"\n".join(map(line, range(count)))


def upload(content, purpose="batch"):
    return CLIENT.files.create(file=("requests.jsonl", io.BytesIO(content)), purpose=purpose)


def make(content):
    input_file = upload(content)
    return CLIENT.batches.create(
        input_file_id=input_file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


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
