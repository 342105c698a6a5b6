// `openai`: models, chat completions and completions, whole and streamed.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';

import { MODEL, URL, waitUntilIdle } from './daemon.mjs';
import { LOOKED_UP, WEATHER, collect, question } from './talk.mjs';

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const SKY = [{ role: 'user', content: 'Why is the sky blue?' }];
const TOOLS = [{ type: 'function', function: WEATHER }];

const ask = (more = {}) =>
  client.chat.completions.create({ model: MODEL, messages: SKY, temperature: 0, max_tokens: 48, ...more });
const streamed = async (more = {}) => collect(await ask({ stream: true, ...more }));
const text = (chunks) => chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? '')).join('');

function toolTalk() {
  const before = LOOKED_UP.flatMap(([city, result, answer]) => [
    { role: 'user', content: question(city) },
    {
      role: 'assistant',
      content: null,
      tool_calls: [
        { id: `call_${city}`, type: 'function', function: { name: 'get_weather', arguments: JSON.stringify({ city }) } },
      ],
    },
    { role: 'tool', tool_call_id: `call_${city}`, content: result },
    { role: 'assistant', content: answer },
  ]);
  return [...before, { role: 'user', content: question('Paris') }];
}

test('openai models: the list has the model, and it is retrieved', async () => {
  const models = await collect(client.models.list());
  assert.ok(models.some((model) => model.id === MODEL));
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
});

test('openai chat: a whole answer has text, an end and usage', async () => {
  const answer = await ask();
  assert.equal(answer.choices[0].finish_reason, 'length');
  assert.ok(answer.choices[0].message.content.trim());
  assert.equal(answer.usage.completion_tokens, 48);
});

test('openai chat: the streamed text is the whole text', async () => {
  const chunks = await streamed();
  assert.equal(text(chunks), (await ask()).choices[0].message.content);
  assert.ok(chunks.every((chunk) => !chunk.usage));
});

test('openai chat: usage is the last chunk when asked for', async () => {
  const chunks = await streamed({ stream_options: { include_usage: true } });
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, 48);
  assert.equal(chunks.filter((chunk) => chunk.usage).length, 1);
});

test('openai chat: log probabilities are of the text', async () => {
  const [choice] = (await ask({ logprobs: true, top_logprobs: 2 })).choices;
  assert.equal(choice.logprobs.content.map((token) => token.token).join(''), choice.message.content);
  assert.ok(choice.logprobs.content.every((token) => token.top_logprobs.length === 2));
});

test('openai chat: a stop string ends the text before it', async () => {
  const whole = (await ask()).choices[0].message.content;
  const stop = whole.slice(12, 16);
  const [choice] = (await ask({ stop })).choices;
  assert.equal(choice.message.content, whole.slice(0, whole.indexOf(stop)));
  assert.equal(choice.finish_reason, 'stop');
});

test('openai chat: n choices are n answers', async () => {
  const { choices } = await ask({ n: 2, temperature: 1, seed: 3 });
  assert.equal(new Set(choices.map((choice) => choice.message.content)).size, 2);
});

test('openai chat: the stream helper has each event and the same answer', async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages: SKY, temperature: 0, max_tokens: 48 });
  const deltas = [];
  stream.on('content', (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas.join(''), final.choices[0].message.content);
  assert.equal(final.choices[0].message.content, (await ask()).choices[0].message.content);
});

test('openai chat: a call is read, whole and streamed', async () => {
  const talk = { messages: toolTalk(), tools: TOOLS };
  const [choice] = (await ask(talk)).choices;
  assert.equal(choice.finish_reason, 'tool_calls');
  const [call] = choice.message.tool_calls;
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ['get_weather', { city: 'Paris' }]);
  const stream = client.chat.completions.stream({ model: MODEL, temperature: 0, max_tokens: 48, ...talk });
  const [again] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.deepEqual(again.function.arguments, call.function.arguments);
});

test('openai chat: the tool runner calls the function and sends its result', async () => {
  const cities = [];
  const get_weather = ({ city }) => {
    cities.push(city);
    return '{"celsius": 17}';
  };
  const tool = { type: 'function', function: { ...WEATHER, function: get_weather, parse: JSON.parse } };
  const runner = client.chat.completions.runTools(
    { model: MODEL, messages: toolTalk(), tools: [tool], temperature: 0, max_tokens: 48 },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  assert.equal(cities[0], 'Paris');
  assert.ok(runner.messages.some((message) => message.role === 'tool' && message.content === '{"celsius": 17}'));
});

test('openai chat: errors are typed', async () => {
  await assert.rejects(ask({ model: 'no-such-model' }), OpenAI.NotFoundError);
  await assert.rejects(ask({ top_logprobs: 21, logprobs: true }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'top_logprobs');
    return true;
  });
});

test('openai chat: aborting a stream frees its place', async () => {
  const stream = await ask({ stream: true, max_tokens: 4000, ignore_eos: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) break;
  }
  stream.controller.abort();
  await waitUntilIdle(1000);
});

test('openai completions: a text goes on, whole and streamed', async () => {
  const prompt = { model: MODEL, prompt: 'The capital of France is', temperature: 0, max_tokens: 12 };
  const whole = await client.completions.create(prompt);
  assert.match(whole.choices[0].text, /Paris/);
  const chunks = await collect(await client.completions.create({ ...prompt, stream: true }));
  assert.equal(chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.text)).join(''), whole.choices[0].text);
});
