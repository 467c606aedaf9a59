// Talks to the server at OPENAI_BASE_URL through OpenAI's Node SDK, and says as JSON what came.
// node talk.mjs MODEL TOOL_MODEL
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const client = new OpenAI({ maxRetries: 0 });
const [model, toolModel] = process.argv.slice(2);
const hello = { model, messages: [{ role: 'user', content: 'hello' }], temperature: 0, max_tokens: 12 };

async function chat() {
  const { data, request_id } = await client.chat.completions.create(hello).withResponse();
  return { text: data.choices[0].message.content, tokens: data.usage.completion_tokens, requestId: request_id };
}

async function stream() {
  const seen = [];
  for await (const chunk of await client.chat.completions.create({ ...hello, stream: true })) {
    seen.push(chunk.choices[0].delta.content ?? '');
  }
  return seen.join('');
}

async function helper() {
  const runner = client.chat.completions.stream(hello);
  const seen = [];
  runner.on('content', (delta) => seen.push(delta));
  const text = (await runner.finalChatCompletion()).choices[0].message.content;
  return { text, same: seen.join('') === text };
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
  const called = [];
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
      function: (input) => (called.push(input), 'rain'),
    },
  };
  const runner = client.chat.completions.runTools(
    { ...hello, model: toolModel, max_tokens: 200, tools: [weather], tool_choice: 'required', parallel_tool_calls: false },
    { maxChatCompletions: 1 },
  );
  await runner.done().catch(() => undefined); // it stops at one completion: with 'required' each would call again
  return { called, roles: runner.messages.map((message) => message.role) };
}

async function wrong() {
  const caught = {};
  for (const [name, fields] of Object.entries({ unknown: { model: 'gone' }, field: { temperature: 9 } })) {
    await client.chat.completions.create({ ...hello, ...fields }).catch((error) => {
      caught[name] = [error.constructor.name, error.status, error.code, error.param];
    });
  }
  return caught;
}

const parts = { chat, stream, helper, wrong, ...(toolModel ? { parse, tools } : {}) };
const told = {};
for (const [name, part] of Object.entries(parts)) told[name] = await part();
console.log(JSON.stringify(told));
