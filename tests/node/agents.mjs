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
const ASKED = "What is the weather in Rome?";
let ran = 0;
const weather = tool(
  ({ city }) => {
    ran += 1;
    return `It is sunny in ${city}.`;
  },
  { name: "get_weather", description: "Say what the weather is in a city.", schema: z.object({ city: z.string() }) },
);
const textOf = (content) => (typeof content === "string" ? content : content.map((part) => part?.text ?? "").join(""));

// As LibreChat calls its custom endpoints: what an answer streams is kept as parts, and the history is made of them.
const kept = [];
async function byLibreChat() {
  const { createContentAggregator, formatAgentMessages, GraphEvents, ModelEndHandler, Providers, Run, ToolEndHandler } = load("@librechat/agents");
  kept.push({ role: "user", content: ASKED });
  const { contentParts, aggregateContent } = createContentAggregator();
  const keeps = { handle: (event, data) => aggregateContent({ event, data }) };
  const streamed = [GraphEvents.ON_RUN_STEP, GraphEvents.ON_RUN_STEP_DELTA, GraphEvents.ON_RUN_STEP_COMPLETED, GraphEvents.ON_MESSAGE_DELTA];
  const run = await Run.create({
    runId: randomUUID(),
    graphConfig: {
      type: "standard",
      instructions: "You are a helpful assistant.",
      llmConfig: { provider: Providers.OPENAI, model, apiKey, configuration, streaming: true, streamUsage: true, maxRetries: 0 },
      tools: [weather],
    },
    returnContent: true,
    customHandlers: {
      ...Object.fromEntries(streamed.map((event) => [event, keeps])),
      [GraphEvents.TOOL_END]: new ToolEndHandler(),
      [GraphEvents.CHAT_MODEL_END]: new ModelEndHandler(),
    },
  });
  await run.processStream({ messages: formatAgentMessages(kept).messages }, { runId: randomUUID(), streamMode: "values", version: "v2" });
  kept.push({ role: "assistant", content: contentParts });
  return textOf(contentParts);
}

// As n8n's node "OpenAI Chat Model" below an agent calls it; `useResponsesApi` is an option of that node.
const messages = [];
async function byNode() {
  const { ChatOpenAI } = load("@langchain/openai");
  const options = { model, apiKey, configuration, useResponsesApi: api === "responses", maxRetries: 0 };
  const chat = new ChatOpenAI(options).bindTools([weather]);
  messages.push(new HumanMessage(ASKED));
  for (let step = 0; step < 4; step++) {
    const answer = await chat.invoke(messages);
    messages.push(answer);
    if (!answer.tool_calls?.length) break;
    for (const call of answer.tool_calls) messages.push(new ToolMessage({ tool_call_id: call.id, content: await weather.invoke(call.args) }));
  }
  return textOf(messages.at(-1).content);
}

const said = [];
for (let turn = 0; turn < 2; turn++) said.push(await (api === "librechat" ? byLibreChat() : byNode()));
console.log(JSON.stringify({ said, ran }));
process.exit(0);
