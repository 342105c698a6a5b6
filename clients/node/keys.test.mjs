// API keys as both clients send them: who has none is told so by the client's own error, and each tenant has its own cache.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

import { MODEL, URL, withKeys } from './daemon.mjs';

const WRONG = `zllm-${'0'.repeat(64)}`;
const gpt = (apiKey) => new OpenAI({ baseURL: `${URL}/v1`, apiKey, maxRetries: 0, timeout: 60_000 });
const claude = (apiKey) => new Anthropic({ baseURL: URL, apiKey, maxRetries: 0, timeout: 60_000 });

/** A request whose prompt has some hundred tokens. */
const asked = (about) => ({
  model: MODEL,
  messages: [{ role: 'user', content: `Say something about ${about}. `.repeat(40) }],
  temperature: 0,
  max_tokens: 2,
});

test('keys: openai says that one is wrong', () =>
  withKeys(['js-openai'], async ([key]) => {
    for (const stream of [false, true]) {
      const refused = gpt(WRONG).chat.completions.create({ ...asked('keys'), stream });
      await assert.rejects(refused, (error) => {
        assert.ok(error instanceof OpenAI.AuthenticationError);
        assert.deepEqual([error.status, error.code], [401, 'invalid_api_key']);
        return true;
      });
    }
    const answer = await gpt(key).chat.completions.create(asked('keys'));
    assert.equal(answer.usage.completion_tokens, 2);
  }));

test('keys: anthropic says that one is wrong', () =>
  withKeys(['js-anthropic'], async ([key]) => {
    await assert.rejects(claude(WRONG).messages.create(asked('keys')), (error) => {
      assert.ok(error instanceof Anthropic.AuthenticationError);
      assert.deepEqual([error.status, error.error.error.type], [401, 'authentication_error']);
      return true;
    });
    const answer = await claude(key).messages.create(asked('keys'));
    assert.equal(answer.usage.output_tokens, 2);
  }));

const cachedBy = {
  openai: async (key) =>
    (await gpt(key).chat.completions.create(asked('tenants'))).usage.prompt_tokens_details.cached_tokens,
  anthropic: async (key) => (await claude(key).messages.create(asked('tenants'))).usage.cache_read_input_tokens,
};

for (const [name, cached] of Object.entries(cachedBy)) {
  test(`keys: what one tenant computed another does not find, with ${name}`, () =>
    withKeys([`js-${name}-a`, `js-${name}-b`], async ([one, other]) => {
      assert.deepEqual([await cached(one), await cached(other)], [0, 0]);
      for (const key of [one, other]) assert.ok((await cached(key)) > 150);
    }));
}
