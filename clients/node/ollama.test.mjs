// `ollama`: chat, generate, embed, and what it lists and shows.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Ollama } from 'ollama';

import { MODEL, URL, waitUntilIdle } from './daemon.mjs';
import { LOOKED_UP, THOUGHT, WEATHER, collect, question } from './talk.mjs';

const client = new Ollama({ host: URL });
const TOOLS = [{ type: 'function', function: WEATHER }];
const options = { temperature: 0, num_predict: 60 };

const said = (role, content, more) => ({ role, content, ...more });
/** A talk that the model ends with a short sentence about Paris. */
const smallTalk = () => [
  ...THOUGHT.flatMap(([asked, , answer]) => [said('user', asked), said('assistant', answer)]),
  said('user', question('Paris')),
];

const toolTalk = () => [
  ...LOOKED_UP.flatMap(([city, result, answer]) => [
    said('user', question(city)),
    said('assistant', '', { tool_calls: [{ function: { name: 'get_weather', arguments: { city } } }] }),
    said('tool', result, { tool_name: 'get_weather' }),
    said('assistant', answer),
  ]),
  said('user', question('Paris')),
];

const chat = (more = {}) => client.chat({ model: MODEL, messages: smallTalk(), options, ...more });

test('ollama: a whole answer has text, an end and counts', async () => {
  const answer = await chat();
  assert.match(answer.message.content, /Paris/);
  assert.deepEqual([answer.done, answer.done_reason], [true, 'stop']);
  assert.ok(answer.prompt_eval_count > 20 && answer.eval_count > 2);
});

test('ollama: the streamed text is the whole text', async () => {
  const parts = await collect(await chat({ stream: true }));
  assert.equal(parts.map((part) => part.message.content).join(''), (await chat()).message.content);
  assert.equal(parts.filter((part) => part.done).length, 1);
});

test('ollama: a call is read', async () => {
  const { message } = await chat({ messages: toolTalk(), tools: TOOLS });
  const [call] = message.tool_calls;
  assert.deepEqual([call.function.name, call.function.arguments], ['get_weather', { city: 'Paris' }]);
});

test('ollama: thoughts are told apart', async () => {
  const messages = [
    ...THOUGHT.flatMap(([asked, thinking, answer]) => [said('user', asked), said('assistant', answer, { thinking })]),
    said('user', question('Paris')),
  ];
  const { message } = await chat({ messages, think: true });
  assert.equal(message.thinking, 'The user asks about Paris.');
});

test('ollama: a prompt is answered, whole and streamed', async () => {
  const asked = { model: MODEL, prompt: 'Why is the sky blue?', options: { temperature: 0, num_predict: 24 } };
  const { response } = await client.generate(asked);
  const parts = await collect(await client.generate({ ...asked, stream: true }));
  assert.equal(parts.map((part) => part.response).join(''), response);
});

test('ollama: texts have vectors of length one', async () => {
  const { embeddings } = await client.embed({ model: MODEL, input: ['A cat.', 'A dog.'] });
  assert.equal(embeddings.length, 2);
  for (const vector of embeddings) assert.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-4);
});

test('ollama: the model is listed, shown and running', async () => {
  assert.ok((await client.list()).models.some((model) => model.model === `${MODEL}:latest`));
  await chat();
  assert.ok((await client.ps()).models.some((model) => model.model === `${MODEL}:latest`));
  assert.equal((await client.show({ model: MODEL })).details.format, 'gguf');
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+/);
});

test('ollama: a model that is not there is not found', async () => {
  await assert.rejects(chat({ model: 'no-such-model' }), (error) => error.status_code === 404);
});

test('ollama: aborting a stream frees its place', async () => {
  const messages = [said('user', 'Why is the sky blue?')];
  const stream = await chat({ messages, options: { num_predict: 4000 }, stream: true });
  for await (const _ of stream) break;
  stream.abort();
  await waitUntilIdle(1000);
});
