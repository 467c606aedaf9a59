// Draws and edits pictures on the server at OPENAI_BASE_URL through the Vercel AI SDK and OpenAI's Node SDK, and prints
// the results as JSON: what each call got, or the name of its error.
import { createOpenAI } from '@ai-sdk/openai';
import { generateImage, generateText } from 'ai';
import OpenAI, { toFile } from 'openai';

const client = new OpenAI({ maxRetries: 0 });
const vercel = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const names = ['alpha-image-2-count', 'gpt-image-1', 'beta-3-pro-image-count'];
const size = '256x256';
const isPng = (bytes) => Buffer.from(bytes).subarray(1, 4).toString() === 'PNG';

async function bySdk(model) {
  const drawn = await client.images.generate({ model, prompt: 'a red boat', size });
  const bytes = Buffer.from(drawn.data[0].b64_json, 'base64');
  const image = await toFile(bytes, 'boat.png', { type: 'image/png' });
  const edited = await client.images.edit({ model, prompt: 'make it blue', image, size });
  return [isPng(bytes), isPng(Buffer.from(edited.data[0].b64_json, 'base64'))];
}

async function byVercel(model) {
  const options = { model: vercel.image(model), size, maxRetries: 0 };
  const drawn = await generateImage({ ...options, prompt: 'a red boat' });
  const edited = await generateImage({ ...options, prompt: { text: 'make it blue', images: [drawn.image.uint8Array] } });
  return [isPng(drawn.image.uint8Array), isPng(edited.image.uint8Array)];
}

async function byVercelsImageTool() {
  const options = {
    model: vercel.responses('starter-chat'),
    tools: { image_generation: vercel.tools.imageGeneration({}) },
    toolChoice: { type: 'tool', toolName: 'image_generation' },
    maxOutputTokens: 64,
    maxRetries: 0,
  };
  const first = await generateText({ ...options, prompt: 'draw a red boat' });
  const openai = { previousResponseId: first.providerMetadata.openai.responseId };
  const second = await generateText({ ...options, prompt: 'make it blue', providerOptions: { openai } });
  return [first, second].flatMap((answer) =>
    answer.staticToolResults.map((result) => isPng(Buffer.from(result.output.result, 'base64'))),
  );
}

const results = {};
for (const model of names) {
  for (const [name, draw] of Object.entries({ bySdk, byVercel })) {
    results[`${name} ${model}`] = await draw(model).catch((error) => `${error.name}: ${error.message}`);
  }
}
if (process.argv[2] === 'tool') {
  results.tool = await byVercelsImageTool().catch((error) => `${error.name}: ${error.message}`);
}
console.log(JSON.stringify(results));
