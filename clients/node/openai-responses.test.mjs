// `openai`: the Responses API.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

import { MODEL, URL, restart, waitUntilIdle } from './daemon.mjs';
import { LOOKED_UP, THOUGHT, WEATHER, collect, question } from './talk.mjs';

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const TOOLS = [{ type: 'function', strict: false, ...WEATHER }];

const said = (role, content) => ({ role, content });
/** A talk that the model ends with a short sentence about Paris. */
const smallTalk = () => [
  ...THOUGHT.flatMap(([asked, , answer]) => [said('user', asked), said('assistant', answer)]),
  said('user', question('Paris')),
];

function toolTalk() {
  const before = LOOKED_UP.flatMap(([city, output, answer]) => {
    const call_id = `call_${city}`;
    return [
      said('user', question(city)),
      { type: 'function_call', call_id, name: 'get_weather', arguments: JSON.stringify({ city }) },
      { type: 'function_call_output', call_id, output },
      said('assistant', answer),
    ];
  });
  return [...before, said('user', question('Paris'))];
}

const create = (more = {}) =>
  client.responses.create({ model: MODEL, input: smallTalk(), temperature: 0, max_output_tokens: 60, ...more });

test('openai responses: a response has text and usage', async () => {
  const response = await create();
  assert.equal(response.status, 'completed');
  assert.match(response.output_text, /Paris/);
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
});

test('openai responses: the stream has each event in its order', async () => {
  const events = await collect(await create({ stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  assert.equal(events[0].type, 'response.created');
  assert.equal(events.at(-1).type, 'response.completed');
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), (await create()).output_text);
});

test('openai responses: the stream helper has the final response', async () => {
  const stream = client.responses.stream({ model: MODEL, input: smallTalk(), temperature: 0 });
  assert.equal((await stream.finalResponse()).output_text, (await create()).output_text);
});

test('openai responses: a call and its result', async () => {
  const first = await create({ input: toolTalk(), tools: TOOLS });
  const [call] = first.output;
  assert.deepEqual([call.type, call.name, JSON.parse(call.arguments)], ['function_call', 'get_weather', { city: 'Paris' }]);
  const input = [{ type: 'function_call_output', call_id: call.call_id, output: '{"celsius": 17}' }];
  const second = await create({ input, tools: TOOLS, previous_response_id: first.id });
  assert.equal(second.output_text, 'It is 17 degrees in Paris.');
});

test('openai responses: a chain goes on over a restart', async () => {
  const first = await create();
  await restart();
  assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
  const second = await create({ input: [said('user', question('Cairo'))], previous_response_id: first.id });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test('openai responses: one in the background is cancelled', async () => {
  const { id } = await create({ input: 'Why is the sky blue?', background: true, max_output_tokens: 6000 });
  assert.equal((await client.responses.cancel(id)).status, 'cancelled');
  await waitUntilIdle(1000);
});

test('openai responses: input tokens are counted', async () => {
  const { input_tokens } = await client.responses.inputTokens.count({ model: MODEL, input: smallTalk() });
  assert.equal(input_tokens, (await create()).usage.input_tokens);
});

test('openai responses: turns over one WebSocket', async () => {
  const socket = new ResponsesWS(client);
  const turn = async (more) => {
    socket.send({ type: 'response.create', model: MODEL, temperature: 0, max_output_tokens: 60, ...more });
    for await (const { type, message, error } of socket.stream()) {
      assert.notEqual(type, 'error', error?.message);
      if (type === 'message' && message.type === 'response.completed') return message.response;
    }
  };
  try {
    const first = await turn({ input: smallTalk() });
    const second = await turn({ input: [said('user', question('Cairo'))], previous_response_id: first.id });
    assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  } finally {
    socket.close();
  }
});
