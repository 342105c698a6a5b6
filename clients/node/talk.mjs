// What the suites say to the model, in no API's form; each suite writes it in its own.
//
// The model is too small to follow instructions, but imitates the turns before: after two calls of a tool it makes a third.

export const WEATHER = {
  name: 'get_weather',
  description: 'The weather of a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

/** Cities whose weather was looked up before, with what the tool said, and the answer. */
export const LOOKED_UP = [
  ['Rome', '{"celsius": 21}', 'It is 21 degrees in Rome.'],
  ['Oslo', '{"celsius": 3}', 'It is 3 degrees in Oslo.'],
];

/** Questions that were answered after a thought, with the thought and the answer. */
export const THOUGHT = [
  ['What is the weather in Rome?', 'The user asks about Rome.', 'It is warm in Rome.'],
  ['What is the weather in Oslo?', 'The user asks about Oslo.', 'It is cold in Oslo.'],
];

export const question = (city) => `What is the weather in ${city}?`;

/** All that an async iterable gives. */
export async function collect(stream) {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
}
