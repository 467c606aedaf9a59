// Conversations by /v1/responses: a tree of turns, since any turn may be continued more than once.
import { events, get, query, Unreachable } from "../core/api.js";

// A turn: {id, parent, said, images, text, drawn, tool, status, error}. `drawn` are sources of <img>.
export const emptyTurn = (parent, said, images) => ({
  id: null, parent, said, images, text: "", drawn: [], drawing: null, status: "in_progress", error: null, raw: [],
});

export const inputOf = (turn) => (turn.images.length
  ? [{ role: "user", content: [{ type: "input_text", text: turn.said }, ...turn.images.map((url) => ({ type: "input_image", image_url: url }))] }]
  : turn.said);

const textOf = (item) => item.content.map((part) => part.text ?? part.refusal ?? "").join("");
const imageOf = (item) => item.url ?? (item.result && `data:image/png;base64,${item.result}`);

// The turn after one more event of its stream. Unknown events change nothing.
export function advance(turn, event) {
  const raw = [...turn.raw, event.type];
  switch (event.type) {
    case "response.created":
      return { ...turn, raw, id: event.response.id };
    case "response.output_text.delta":
      return { ...turn, raw, text: turn.text + event.delta };
    case "response.image_generation_call.in_progress":
      return { ...turn, raw, drawing: { preview: null } };
    case "response.image_generation_call.partial_image":
      return { ...turn, raw, drawing: { preview: `data:image/png;base64,${event.partial_image_b64}` } };
    case "response.output_item.done":
      if (event.item.type !== "image_generation_call") return { ...turn, raw };
      return { ...turn, raw, drawing: null, drawn: imageOf(event.item) ? [...turn.drawn, imageOf(event.item)] : turn.drawn };
    case "response.completed":
    case "response.incomplete":
      return { ...turn, raw, drawing: null, status: event.response.status };
    case "response.failed":
      return { ...turn, raw, drawing: null, status: "failed", error: event.response.error };
    default:
      return { ...turn, raw };
  }
}

const LOST_MS = 3000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Calls `show` with the turn after each event. Throws Unreachable also for a stream that ends too early.
async function receive(turn, stream, show) {
  let current = turn;
  for await (const event of stream) {
    current = advance(current, event);
    show(current);
  }
  if (current.status === "in_progress") throw new Unreachable();
  return current;
}

// Joins a turn that runs on the server, from its first event, as often as the server is lost.
export async function rejoinTurn({ id, parent, said, images }, show, signal) {
  for (;;) {
    try {
      return await receive({ ...emptyTurn(parent, said, images), id }, events("GET", `/v1/responses/${id}?stream=true`, undefined, { signal }), show);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
    }
    await pause(LOST_MS);
  }
}

// Sends a turn. It runs in the background of the server, so that it goes on when the page is left.
export async function sendTurn(turn, { model, tool }, show, signal) {
  const body = { model, input: inputOf(turn), stream: true, background: true, previous_response_id: turn.parent, max_output_tokens: 800 };
  if (tool) body.tools = [{ type: "image_generation", partial_images: 2, ...tool }];
  let current = turn;
  const note = (next) => {
    current = next;
    show(next);
  };
  try {
    return await receive(turn, events("POST", "/v1/responses", body, { signal }), note);
  } catch (error) {
    if (!(error instanceof Unreachable) || !current.id) throw error;
  }
  return rejoinTurn(current, show, signal);
}

async function storedTurn(id) {
  const [response, inputs] = await Promise.all([get(`/v1/responses/${id}`), get(`/v1/responses/${id}/input_items?order=desc&limit=20`)]);
  const mine = inputs.data.find((item) => item.role === "user");
  const parts = mine?.content ?? [];
  const messages = response.output.filter((item) => item.type === "message");
  const calls = response.output.filter((item) => item.type === "image_generation_call");
  return {
    ...emptyTurn(response.previous_response_id ?? null, parts.map((part) => part.text ?? "").join(""), []),
    id,
    text: messages.map(textOf).join("\n"),
    drawn: calls.map(imageOf).filter(Boolean),
    status: response.status,
    error: response.error,
  };
}

// All turns of a stored conversation, by its first one.
export async function loadTree(root) {
  const turns = [];
  for (let after = null, more = true; more; ) {
    const page = await get(query("/v1/darkroom/responses", { root, order: "asc", limit: 100, after }));
    turns.push(...await Promise.all(page.data.map(({ id }) => storedTurn(id))));
    [after, more] = [page.last_id, page.has_more];
  }
  return turns;
}

// The last turn below this one, along the newest continuations.
export function tipOf(turns, id) {
  const children = turns.filter((turn) => turn.parent === id);
  return children.length ? tipOf(turns, children.at(-1).id) : id;
}

// The turns from the root to the one with this id.
export function pathTo(turns, id) {
  const path = [];
  for (let turn = turns.find((each) => each.id === id); turn; turn = turns.find((each) => each.id === turn.parent)) path.unshift(turn);
  return path;
}
