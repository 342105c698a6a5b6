// `openai`: embeddings.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

import { MODEL, URL } from './daemon.mjs';

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });

test('openai embeddings: vectors of length one', async () => {
  const { data } = await client.embeddings.create({ model: MODEL, input: ['A cat.', 'A dog.'] });
  assert.equal(data.length, 2);
  for (const { embedding } of data) assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-4);
});
