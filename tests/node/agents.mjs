// Two turns with a tool, as LibreChat's own package and n8n's OpenAI nodes (LangChain's ChatOpenAI) have them. Their
// packages are in the folder that is given. Prints what each turn said, and how often the tool ran, as JSON.
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";

const [model, api, folder] = process.argv.slice(2);
const load = createRequire(`${folder}/package.json`);
const { HumanMessage, ToolMessage } = load("@langchain/core/messages");
const { tool } = load("@langchain/core/tools");
const { z } = load("zod");
const configuration = { baseURL: process.env.OPENAI_BASE_URL };
const apiKey = process.env.OPENAI_API_KEY;
let ran = 0;
const weather = tool(
  ({ city }) => {
    ran += 1;
    return `It is sunny in ${city}.`;
  },
  { name: "get_weather", description: "Say what the weather is in a city.", schema: z.object({ city: z.string() }) },
);
const textOf = (content) => (typeof content === "string" ? content : content.map((part) => part.text ?? "").join(""));

// As LibreChat's custom endpoints call it.
async function byLibreChat(messages) {
  const { Providers, Run } = load("@librechat/agents");
  const run = await Run.create({
    runId: randomUUID(),
    graphConfig: {
      type: "standard",
      instructions: "You are a helpful assistant.",
      llmConfig: { provider: Providers.OPENAI, model, apiKey, configuration, streaming: true, streamUsage: true, maxRetries: 0 },
      tools: [weather],
    },
    returnContent: true,
  });
  await run.processStream({ messages }, { runId: randomUUID(), streamMode: "values", version: "v2", configurable: { thread_id: randomUUID() } });
  return run.getRunMessages();
}

// As the node "OpenAI Chat Model" below an agent calls it; `useResponsesApi` is an option of that node.
async function byNode(messages) {
  const { ChatOpenAI } = load("@langchain/openai");
  const chat = new ChatOpenAI({ model, apiKey, configuration, useResponsesApi: api === "responses", maxRetries: 0, streaming: true }).bindTools([weather]);
  const made = [];
  while (made.length < 8) {
    const answer = await chat.invoke([...messages, ...made]);
    made.push(answer);
    if (!answer.tool_calls?.length) break;
    for (const call of answer.tool_calls) made.push(new ToolMessage({ tool_call_id: call.id, content: await weather.invoke(call.args) }));
  }
  return made;
}

const messages = [];
const said = [];
for (let turn = 0; turn < 2; turn++) {
  messages.push(new HumanMessage("What is the weather in Rome?"));
  messages.push(...(await (api === "librechat" ? byLibreChat : byNode)([...messages])));
  said.push(textOf(messages.at(-1).content));
}
console.log(JSON.stringify({ said, ran }));
process.exit(0);
