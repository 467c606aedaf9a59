// Uses /v1/responses of the server at OPENAI_BASE_URL through OpenAI's Node SDK, and prints the results as JSON.
// node respond.mjs MODEL
import OpenAI from 'openai';

const client = new OpenAI({ maxRetries: 0 });
const [model] = process.argv.slice(2);
const tools = [{ type: 'image_generation', size: '256x256', partial_images: 1 }];
const request = { model, tools, tool_choice: { type: 'image_generation' }, max_output_tokens: 64, temperature: 0 };
const imageCall = (response) => response.output.find((item) => item.type === 'image_generation_call');

async function turns() {
  const first = await client.responses.create({ ...request, input: 'draw a red boat' });
  const second = await client.responses.create({
    ...request,
    input: 'make it blue',
    previous_response_id: first.id,
  });
  const again = await client.responses.retrieve(second.id);
  const items = await client.responses.inputItems.list(second.id);
  await client.responses.delete(first.id);
  const gone = await client.responses.retrieve(first.id).catch((error) => error.status);
  return {
    statuses: [imageCall(first).status, imageCall(second).status],
    same: imageCall(again).result === imageCall(second).result,
    input: items.data[0].content[0].text,
    gone,
  };
}

async function stream() {
  const types = [];
  const numbers = [];
  for await (const event of await client.responses.create({ ...request, input: 'a boat', stream: true })) {
    types.push(event.type);
    numbers.push(event.sequence_number);
  }
  return { types, inOrder: numbers.every((number, index) => number === index) };
}

async function background() {
  let response = await client.responses.create({ ...request, input: 'a boat', background: true });
  while (['queued', 'in_progress'].includes(response.status)) {
    await new Promise((resolve) => setTimeout(resolve, 300));
    response = await client.responses.retrieve(response.id);
  }
  return imageCall(response).status;
}

const results = {};
for (const [name, part] of Object.entries({ turns, stream, background })) results[name] = await part();
console.log(JSON.stringify(results));
