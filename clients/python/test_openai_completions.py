"""`openai`: completions of texts and of token ids."""

import unittest

import openai
from daemon import MODEL, URL

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=60)
FRANCE = "The capital of France is"


def complete(prompt=FRANCE, **more):
    return CLIENT.completions.create(**{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12, **more})


class Completions(unittest.TestCase):
    def test_a_text_goes_on(self):
        answer = complete()
        self.assertIn("Paris", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)

    def test_the_streamed_text_is_the_whole_text(self):
        chunks = list(complete(stream=True))
        text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        self.assertEqual(text, complete().choices[0].text)

    def test_log_probabilities_have_offsets_into_the_text(self):
        choice = complete(logprobs=2).choices[0]
        found = choice.logprobs
        self.assertEqual("".join(found.tokens), choice.text)
        self.assertEqual(len(found.token_logprobs), 12)
        begins = [sum(map(len, found.tokens[:index])) for index in range(12)]
        self.assertEqual([offset - found.text_offset[0] for offset in found.text_offset], begins)
        self.assertTrue(all(len(top) >= 2 for top in found.top_logprobs))

    def test_token_ids_are_a_prompt(self):
        answer = complete([504, 3575, 282])
        self.assertEqual(answer.usage.prompt_tokens, 3)

    def test_a_suffix_is_refused_by_name(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            complete(suffix="!")
        self.assertEqual(caught.exception.param, "suffix")
