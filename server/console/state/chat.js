// Chats by /v1/chat/completions. The server keeps none: they stay in this browser until its person signs out, and an
// answer goes on while another page is shown.
import { events } from "../core/api.js";
import { createStore } from "../core/store.js";
import { deleteLater } from "./deletions.js";
import { keep } from "./work.js";

const MOST_PAST = 30;
const NEW = { id: null, title: "", text: "", images: [], messages: [], usage: null };
const IDLE = { busy: false, error: null };

// `past` are the chats before this one, {id, title, messages, usage}, newest first.
export const chat = createStore({ model: "", limit: 400, system: "", temperature: "", past: [], ...NEW, ...IDLE });
export const setChat = (values) => chat.set((before) => ({ ...before, ...values }));

// An answer that has not begun is asked for again: its message is still in the form.
function packed({ busy, error, ...kept }) {
  const waits = busy && kept.messages.at(-1)?.content === "";
  return { ...kept, messages: waits ? kept.messages.slice(0, -2) : kept.messages };
}
keep("chat", chat, { pack: packed, restore: (kept) => setChat({ ...kept, ...IDLE }) });

function partsOf(text, images) {
  if (!images.length) return text;
  return [{ type: "text", text }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))];
}

export const textOf = (content) => (typeof content === "string" ? content : content.find((part) => part.type === "text").text);

let asking = null; // the AbortController of the answer that comes
export const stopChat = () => asking?.abort();

async function receive(body, asked, signal) {
  let answer = "";
  for await (const chunk of events("POST", "/v1/chat/completions", body, { signal })) {
    if (chunk.error) throw Object.assign(new Error(chunk.error.message), chunk.error);
    answer += chunk.choices[0]?.delta.content ?? "";
    setChat({ messages: [...asked, { role: "assistant", content: answer }], ...(answer && { text: "", images: [] }) });
    if (chunk.usage) setChat({ usage: chunk.usage });
  }
  setChat({ text: "", images: [] });
}

// Sends what the form has. If no answer begins, it stays there to be sent again.
export async function sendChat(model) {
  const { text, images, messages, limit, id, system, temperature } = chat.get();
  const asked = [...messages, { role: "user", content: partsOf(text, images) }];
  setChat({ busy: true, error: null, id: id ?? crypto.getRandomValues(new Uint32Array(2)).join("-"), messages: [...asked, { role: "assistant", content: "" }] });
  asking = new AbortController();
  const instructions = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  const body = { model, messages: [...instructions, ...asked], max_tokens: Number(limit), stream: true, stream_options: { include_usage: true } };
  if (temperature !== "") body.temperature = Number(temperature);
  try {
    await receive(body, asked, asking.signal);
  } catch (error) {
    if (chat.get().messages.at(-1)?.content === "") setChat({ messages });
    if (error.name !== "AbortError") setChat({ error });
  } finally {
    setChat({ busy: false });
  }
}

const imagesIn = (content) => (typeof content === "string" ? [] : content.filter((part) => part.image_url).map((part) => part.image_url.url));

// Takes the last message back into the form, without its answer.
export function takeBack() {
  const { messages } = chat.get();
  const said = messages.at(-2).content;
  setChat({ messages: messages.slice(0, -2), text: textOf(said), images: imagesIn(said) });
}

// Asks for another answer to the last message, in place of the one that is there.
export function askAgain(model) {
  takeBack();
  return sendChat(model);
}

const shelved = ({ id, title, messages, usage, past }) => (messages.length ? [{ id, title, messages, usage }, ...past].slice(0, MOST_PAST) : past);

export const nameOf = ({ title, messages }) => title || textOf(messages[0].content);

export const newChat = () => chat.set((before) => ({ ...before, ...NEW, ...IDLE, past: shelved(before) }));

export function openChat(id) {
  const found = chat.get().past.find((each) => each.id === id);
  chat.set((before) => ({ ...before, ...NEW, ...IDLE, ...found, past: shelved(before).filter((each) => each.id !== id) }));
}

export const renameChat = (id, title) => chat.set((before) => ({ ...before, past: before.past.map((each) => (each.id === id ? { ...each, title } : each)) }));

export const deleteChat = (id) => deleteLater("chat", id, async () => chat.set((before) => ({ ...before, past: before.past.filter((each) => each.id !== id) })));
