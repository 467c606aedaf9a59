// Two turns with a tool by the Vercel AI SDK. Prints what each turn said, and how often the tool ran, as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const [model, api] = process.argv.slice(2);
const provider = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
let ran = 0;
const tools = {
  get_weather: tool({
    description: "Say what the weather is in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      ran += 1;
      return `It is sunny in ${city}.`;
    },
  }),
};
const messages = [];
const said = [];
for (let turn = 0; turn < 2; turn++) {
  messages.push({ role: "user", content: "What is the weather in Rome?" });
  const chosen = api === "chat" ? provider.chat(model) : provider.responses(model);
  const result = await generateText({ model: chosen, tools, messages, stopWhen: stepCountIs(4), maxRetries: 0 });
  messages.push(...result.response.messages);
  said.push(result.text);
}
console.log(JSON.stringify({ said, ran }));
