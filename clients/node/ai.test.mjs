// `ai` with `@ai-sdk/openai-compatible`: text, streams, tools and reasoning as applications see them.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, embed, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';

import { MODEL, URL, waitUntilIdle } from './daemon.mjs';
import { LOOKED_UP, THOUGHT, WEATHER, collect, question } from './talk.mjs';

const zllm = createOpenAICompatible({ name: 'zllm', baseURL: `${URL}/v1`, apiKey: 'none', includeUsage: true });
const model = zllm(MODEL);
const SKY = { model, prompt: 'Why is the sky blue?', temperature: 0, maxOutputTokens: 48, maxRetries: 0 };

function toolTalk() {
  const before = LOOKED_UP.flatMap(([city, result, answer]) => {
    const call = { toolCallId: `call_${city}`, toolName: 'get_weather' };
    return [
      { role: 'user', content: question(city) },
      { role: 'assistant', content: [{ type: 'tool-call', ...call, input: { city } }] },
      { role: 'tool', content: [{ type: 'tool-result', ...call, output: { type: 'text', value: result } }] },
      { role: 'assistant', content: answer },
    ];
  });
  return [...before, { role: 'user', content: question('Paris') }];
}

const thoughtfulTalk = () => [
  ...THOUGHT.flatMap(([asked, thought, answer]) => [
    { role: 'user', content: asked },
    { role: 'assistant', content: [{ type: 'reasoning', text: thought }, { type: 'text', text: answer }] },
  ]),
  { role: 'user', content: question('Paris') },
];

test('ai: a generated text has an end and usage', async () => {
  const { text, finishReason, usage } = await generateText(SKY);
  assert.ok(text.trim());
  assert.equal(finishReason, 'length');
  assert.equal(usage.outputTokens, 48);
  assert.ok(usage.inputTokens > 0);
});

test('ai: the streamed text is the generated text, with usage', async () => {
  const stream = streamText(SKY);
  const parts = await collect(stream.textStream);
  assert.ok(parts.length > 10);
  assert.equal(parts.join(''), (await generateText(SKY)).text);
  assert.equal((await stream.usage).outputTokens, 48);
});

test('ai: a tool is executed and its result sent back', async () => {
  const cities = [];
  const execute = ({ city }) => {
    cities.push(city);
    return { celsius: 17 };
  };
  const get_weather = tool({ description: WEATHER.description, inputSchema: jsonSchema(WEATHER.parameters), execute });
  const { steps } = await generateText({
    ...SKY,
    prompt: undefined,
    messages: toolTalk(),
    tools: { get_weather },
    stopWhen: stepCountIs(2),
  });
  assert.equal(cities[0], 'Paris');
  assert.equal(steps[0].finishReason, 'tool-calls');
  assert.equal(steps.length, 2);
});

test('ai: a streamed tool call has its input in pieces', async () => {
  const get_weather = tool({ description: WEATHER.description, inputSchema: jsonSchema(WEATHER.parameters) });
  const stream = streamText({ ...SKY, prompt: undefined, messages: toolTalk(), tools: { get_weather } });
  const parts = await collect(stream.fullStream);
  const call = parts.find((part) => part.type === 'tool-call');
  assert.deepEqual([call.toolName, call.input], ['get_weather', { city: 'Paris' }]);
  const deltas = parts.filter((part) => part.type === 'tool-input-delta');
  assert.deepEqual(JSON.parse(deltas.map((part) => part.delta ?? part.inputTextDelta).join('')), { city: 'Paris' });
});

test('ai: reasoning is told apart, generated and streamed', async () => {
  const talk = { ...SKY, prompt: undefined, messages: thoughtfulTalk() };
  const { reasoningText, text } = await generateText(talk);
  assert.equal(reasoningText, 'The user asks about Paris.');
  assert.match(text, /Paris/);
  const stream = streamText(talk);
  assert.equal((await collect(stream.textStream)).join(''), text);
  assert.equal(await stream.reasoningText, reasoningText);
});

test('ai: the base model completes a text', async () => {
  const { text } = await generateText({ ...SKY, model: zllm.completionModel(MODEL), prompt: 'Two and two' });
  assert.ok(text.trim());
});

test('ai: an error is the API call’s', async () => {
  await assert.rejects(generateText({ ...SKY, model: zllm('no-such-model') }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 404);
    return true;
  });
});

test('ai: aborting a stream frees its place', async () => {
  const abort = new AbortController();
  const stream = streamText({ ...SKY, maxOutputTokens: 4000, abortSignal: abort.signal });
  for await (const _ of stream.textStream) break;
  abort.abort();
  await waitUntilIdle(1000);
});

test('ai: texts are embedded, one and many', async () => {
  const embedder = zllm.embeddingModel(MODEL);
  const { embedding } = await embed({ model: embedder, value: 'A cat.' });
  const { embeddings } = await embedMany({ model: embedder, values: ['A cat.', 'A dog.'] });
  assert.deepEqual(embeddings[0], embedding);
  assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-4);
});
