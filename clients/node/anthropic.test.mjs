// `@anthropic-ai/sdk`: messages, whole and streamed, tools, thinking and counting.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';

import { MODEL, URL, waitUntilIdle } from './daemon.mjs';
import { LOOKED_UP, THOUGHT, WEATHER, collect, question } from './talk.mjs';

const client = new Anthropic({ baseURL: URL, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const TOOLS = [{ name: WEATHER.name, description: WEATHER.description, input_schema: WEATHER.parameters }];
const THINKING = { max_tokens: 2000, thinking: { type: 'enabled', budget_tokens: 1024 } };

const said = (role, content) => ({ role, content });
/** A talk that the model ends with a short sentence about Paris. */
const smallTalk = () => [
  ...THOUGHT.flatMap(([asked, , answer]) => [said('user', asked), said('assistant', answer)]),
  said('user', question('Paris')),
];

function toolTalk() {
  const before = LOOKED_UP.flatMap(([city, content, answer]) => [
    said('user', question(city)),
    said('assistant', [{ type: 'tool_use', id: `toolu_${city}`, name: 'get_weather', input: { city } }]),
    said('user', [{ type: 'tool_result', tool_use_id: `toolu_${city}`, content }]),
    said('assistant', answer),
  ]);
  return [...before, said('user', question('Paris'))];
}

const thoughtfulTalk = () => [
  ...THOUGHT.flatMap(([asked, thinking, text]) => [
    said('user', asked),
    said('assistant', [{ type: 'thinking', thinking, signature: 'x' }, { type: 'text', text }]),
  ]),
  said('user', question('Paris')),
];

const asked = (more = {}) => ({ model: MODEL, messages: smallTalk(), temperature: 0, max_tokens: 60, ...more });
const ask = (more) => client.messages.create(asked(more));
const text = (message) => message.content.flatMap((block) => (block.type === 'text' ? [block.text] : [])).join('');
const promptTokens = ({ input_tokens, cache_read_input_tokens, cache_creation_input_tokens }) =>
  input_tokens + (cache_read_input_tokens ?? 0) + (cache_creation_input_tokens ?? 0);

test('anthropic: a whole answer has text, an end and usage', async () => {
  const answer = await ask();
  assert.match(text(answer), /Paris/);
  assert.equal(answer.stop_reason, 'end_turn');
  assert.ok(answer.usage.output_tokens > 2);
});

test('anthropic: the events come in their order', async () => {
  const events = (await collect(await ask({ stream: true }))).filter((event) => event.type !== 'ping');
  const order = events.map((event) => event.type).filter((type) => type !== 'content_block_delta');
  assert.deepEqual(order, ['message_start', 'content_block_start', 'content_block_stop', 'message_delta', 'message_stop']);
});

test('anthropic: the stream helper has the whole message', async () => {
  const stream = client.messages.stream(asked());
  const parts = [];
  stream.on('text', (part) => parts.push(part));
  const final = await stream.finalMessage();
  assert.equal(parts.join(''), text(await ask()));
  assert.equal(text(final), parts.join(''));
});

test('anthropic: a stop sequence is named', async () => {
  const answer = await ask({ stop_sequences: [' in Paris'] });
  assert.deepEqual([answer.stop_reason, answer.stop_sequence], ['stop_sequence', ' in Paris']);
});

test('anthropic: a call is a block, whole and streamed', async () => {
  const talk = { messages: toolTalk(), tools: TOOLS };
  const answer = await ask(talk);
  const [use] = answer.content;
  assert.deepEqual([use.type, use.name, use.input], ['tool_use', 'get_weather', { city: 'Paris' }]);
  assert.equal(answer.stop_reason, 'tool_use');
  const [again] = (await client.messages.stream(asked(talk)).finalMessage()).content;
  assert.deepEqual([again.name, again.input], [use.name, use.input]);
});

test('anthropic: the tool runner calls the function and sends its result', async () => {
  const cities = [];
  const run = ({ city }) => {
    cities.push(city);
    return '{"celsius": 17}';
  };
  const parse = (input) => input;
  const runner = client.beta.messages.toolRunner({
    ...asked({ messages: toolTalk() }),
    tools: [{ ...TOOLS[0], run, parse }],
    max_iterations: 2,
  });
  for await (const message of runner) assert.ok(message.content.length > 0);
  assert.equal(cities[0], 'Paris');
});

test('anthropic: thoughts are blocks, whole and streamed', async () => {
  const answer = await ask({ messages: thoughtfulTalk(), ...THINKING });
  assert.deepEqual(answer.content.map((block) => block.type), ['thinking', 'text']);
  assert.equal(answer.content[0].thinking, 'The user asks about Paris.');
  const streamed = await client.messages.stream(asked({ messages: thoughtfulTalk(), ...THINKING })).finalMessage();
  assert.equal(streamed.content[0].thinking, answer.content[0].thinking);
});

test('anthropic: counted tokens are those of the usage', async () => {
  const talk = { messages: toolTalk(), tools: TOOLS, system: 'Be brief.' };
  const { input_tokens } = await client.messages.countTokens({ model: MODEL, ...talk });
  assert.equal(input_tokens, promptTokens((await ask(talk)).usage));
});

test('anthropic: errors are typed', async () => {
  await assert.rejects(ask({ model: 'no-such-model' }), Anthropic.NotFoundError);
  await assert.rejects(ask({ messages: [] }), Anthropic.BadRequestError);
});

test('anthropic: aborting a stream frees its place', async () => {
  const stream = client.messages.stream(asked({ messages: [said('user', 'Why is the sky blue?')], max_tokens: 4000 }));
  for await (const event of stream) if (event.type === 'content_block_delta') break;
  stream.abort();
  await waitUntilIdle(1000);
});
