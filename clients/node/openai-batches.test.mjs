// `openai`: files and batches.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import OpenAI, { toFile } from 'openai';

import { MODEL, URL } from './daemon.mjs';

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });

test('openai batches: a batch over an uploaded file', async () => {
  const line = (number) => ({
    custom_id: `n${number}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: MODEL, messages: [{ role: 'user', content: `Number ${number}.` }], temperature: 0, max_tokens: 8 },
  });
  const text = [1, 2, 3].map((number) => JSON.stringify(line(number))).join('\n');
  const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' });
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  });
  const giveUp = performance.now() + 60_000;
  while (batch.status !== 'completed') {
    assert.ok(performance.now() < giveUp, `the batch is still ${batch.status}`);
    await sleep(100);
    batch = await client.batches.retrieve(batch.id);
  }
  const output = await (await client.files.content(batch.output_file_id)).text();
  const names = output.trim().split('\n').map((found) => JSON.parse(found).custom_id);
  assert.deepEqual(names.sort(), ['n1', 'n2', 'n3']);
});
