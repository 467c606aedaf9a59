// Talks to the server at OPENAI_BASE_URL through OpenAI's Node SDK, and prints the results as JSON.
// node talk.mjs MODEL TOOL_MODEL
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const client = new OpenAI({ maxRetries: 0 });
const [model, toolModel] = process.argv.slice(2);
// As LETTERS in tests/support/chat_servers.py.
const letters = Object.fromEntries(Array.from({ length: 26 }, (_, index) => [String(69 + index), 100]));
const messages = [{ role: 'user', content: 'hello' }];
const hello = { model, messages, temperature: 0, max_tokens: 12, logit_bias: letters };

async function chat() {
  const { data, request_id } = await client.chat.completions.create(hello).withResponse();
  return { text: data.choices[0].message.content, tokens: data.usage.completion_tokens, requestId: request_id };
}

async function stream() {
  const deltas = [];
  for await (const chunk of await client.chat.completions.create({ ...hello, stream: true })) {
    deltas.push(chunk.choices[0].delta.content ?? '');
  }
  return deltas.join('');
}

async function helper() {
  const runner = client.chat.completions.stream(hello);
  const deltas = [];
  runner.on('content', (delta) => deltas.push(delta));
  const text = (await runner.finalChatCompletion()).choices[0].message.content;
  return { text, same: deltas.join('') === text };
}

async function parse() {
  const Answer = z.object({ city: z.enum(['Wien', 'Graz']), rain: z.boolean() });
  const completion = await client.chat.completions.parse({
    ...hello,
    max_tokens: 200,
    response_format: zodResponseFormat(Answer, 'answer'),
  });
  return completion.choices[0].message.parsed;
}

async function tools() {
  const calls = [];
  const weather = {
    type: 'function',
    function: {
      name: 'weather',
      description: 'The weather of a city',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string', enum: ['Wien', 'Graz'] } },
        required: ['city'],
        additionalProperties: false,
      },
      parse: JSON.parse,
      function: (input) => (calls.push(input), 'rain'),
    },
  };
  const runner = client.chat.completions.runTools(
    { ...hello, model: toolModel, max_tokens: 200, tools: [weather], tool_choice: 'required', parallel_tool_calls: false },
    { maxChatCompletions: 1 },
  );
  await runner.done().catch(() => undefined); // it stops at one completion: with 'required' each would call again
  return { calls, roles: runner.messages.map((message) => message.role) };
}

async function errorsOfCalls() {
  const errors = {};
  for (const [name, fields] of Object.entries({ unknown: { model: 'gone' }, field: { temperature: 9 } })) {
    await client.chat.completions.create({ ...hello, ...fields }).catch((error) => {
      errors[name] = [error.constructor.name, error.status, error.code, error.param];
    });
  }
  return errors;
}

const parts = { chat, stream, helper, errors: errorsOfCalls, ...(toolModel ? { parse, tools } : {}) };
const results = {};
for (const [name, part] of Object.entries(parts)) results[name] = await part();
console.log(JSON.stringify(results));
