"""API keys as both clients send them: who has none is told so by the client's own error, and each tenant has its own cache."""

import unittest

import anthropic
import openai
from daemon import MODEL, URL, keys

WRONG = "zllm-" + "0" * 64


def gpt(key):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0, timeout=60)


def claude(key):
    return anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0, timeout=60)


def talk(about):
    """A prompt of some hundred tokens."""
    return [{"role": "user", "content": f"Tell me more about {about}. " * 40}]


def complete(client, about, **more):
    return client.chat.completions.create(
        model=MODEL, messages=talk(about), temperature=0, max_tokens=2, **more
    )


def message(client, about):
    return client.messages.create(
        model=MODEL, messages=talk(about), extra_body={"temperature": 0}, max_tokens=2
    )


def gpt_cached(key, about):
    return complete(gpt(key), about).usage.prompt_tokens_details.cached_tokens


def claude_cached(key, about):
    return message(claude(key), about).usage.cache_read_input_tokens


class Keys(unittest.TestCase):
    def test_openai_says_that_a_key_is_wrong(self):
        with keys("py-openai") as [key]:
            for stream in (False, True):
                with self.assertRaises(openai.AuthenticationError) as caught:
                    complete(gpt(WRONG), "keys", stream=stream)
                self.assertEqual((caught.exception.status_code, caught.exception.code), (401, "invalid_api_key"))
            with self.assertRaises(openai.AuthenticationError):
                gpt(WRONG).models.list()
            self.assertEqual(complete(gpt(key), "keys").usage.completion_tokens, 2)
            self.assertIn(MODEL, [model.id for model in gpt(key).models.list()])
        # It was taken back, and is none any more; nobody needs one now.
        self.assertEqual(complete(gpt("none"), "keys").usage.completion_tokens, 2)

    def test_anthropic_says_that_a_key_is_wrong(self):
        with keys("py-anthropic") as [key]:
            with self.assertRaises(anthropic.AuthenticationError) as caught:
                message(claude(WRONG), "keys")
            self.assertEqual(caught.exception.status_code, 401)
            self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
            with self.assertRaises(anthropic.AuthenticationError):
                claude(WRONG).messages.count_tokens(model=MODEL, messages=talk("keys"))
            self.assertEqual(message(claude(key), "keys").usage.output_tokens, 2)

    def test_what_one_tenant_computed_another_does_not_find(self):
        for cached, names in ((gpt_cached, ("py-ada", "py-bob")), (claude_cached, ("py-eve", "py-kim"))):
            with keys(*names) as [one, other]:
                self.assertEqual((cached(one, "tenants"), cached(other, "tenants")), (0, 0))
                for key in (one, other):
                    self.assertGreater(cached(key, "tenants"), 150)
