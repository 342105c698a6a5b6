"""`openai`: embeddings."""

import math
import unittest

import openai
from daemon import MODEL, URL

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=60)
TEXTS = ["A cat sat on the mat.", "A kitten sat on the rug.", "Interest rates rose by half a point."]


def embed(input, **more):
    return CLIENT.embeddings.create(model=MODEL, input=input, **more)


def norm(vector):
    return math.sqrt(sum(value * value for value in vector))


class Embeddings(unittest.TestCase):
    def test_a_text_has_a_vector_of_length_one(self):
        # The client asks for base64 unless told otherwise.
        answer = embed(TEXTS[0])
        self.assertEqual(len(answer.data), 1)
        self.assertAlmostEqual(norm(answer.data[0].embedding), 1, places=4)
        self.assertEqual(answer.usage.prompt_tokens, answer.usage.total_tokens)

    def test_floats_are_the_same_vector(self):
        encoded, floats = embed(TEXTS[0]).data[0], embed(TEXTS[0], encoding_format="float").data[0]
        for one, other in zip(encoded.embedding, floats.embedding, strict=True):
            self.assertAlmostEqual(one, other, places=6)

    def test_texts_together_are_as_each_alone(self):
        together = embed(TEXTS).data
        self.assertEqual([found.index for found in together], [0, 1, 2])
        for found, text in zip(together, TEXTS):
            self.assertEqual(found.embedding, embed(text).data[0].embedding)

    def test_what_means_the_same_is_nearer(self):
        cat, kitten, rates = [found.embedding for found in embed(TEXTS).data]
        near, far = (sum(a * b for a, b in zip(cat, other)) for other in (kitten, rates))
        self.assertGreater(near, far)

    def test_fewer_dimensions_are_normalised_again(self):
        vector = embed(TEXTS[0], dimensions=64).data[0].embedding
        self.assertEqual(len(vector), 64)
        self.assertAlmostEqual(norm(vector), 1, places=4)

    def test_no_input_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            embed([])
        self.assertEqual(caught.exception.param, "input")
