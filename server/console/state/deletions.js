// Images that a person deletes: at first they only leave the lists, and can come back. The server is told a little
// later, or when the page is left; if that fails, they come back.
import { call } from "../core/api.js";
import { createStore } from "../core/store.js";
import { forgetImage } from "./jobs.js";

export const UNDO_MS = 10_000;
export const waiting = createStore([]); // {id, timer}, newest last: they can come back
export const deleted = createStore(new Set()); // the ids that no list shows
export const failed = createStore(null); // the error of the last one

const hide = (id) => deleted.set((ids) => new Set([...ids, id]));
const bringBack = (id) => deleted.set((ids) => new Set([...ids].filter((each) => each !== id)));

function take(id) {
  const one = waiting.get().find((each) => each.id === id);
  clearTimeout(one?.timer);
  waiting.set((all) => all.filter((each) => each.id !== id));
  return one;
}

async function send(id, options) {
  if (!take(id)) return;
  try {
    await call("DELETE", `/v1/darkroom/results/${id}`, undefined, options);
  } catch (error) {
    if (error.status !== 404) { // else it was gone already
      bringBack(id);
      failed.set(error);
      return;
    }
  }
  forgetImage(id);
}

export function deleteImage(id) {
  if (deleted.get().has(id)) return;
  failed.set(null);
  hide(id);
  waiting.set((all) => [...all, { id, timer: setTimeout(() => send(id), UNDO_MS) }]);
}

export function undoDeletion() {
  for (const { id } of waiting.get()) {
    take(id);
    bringBack(id);
  }
}

// Sends all that wait.
export const deleteNow = (options) => Promise.all(waiting.get().map(({ id }) => send(id, options)));

addEventListener("pagehide", () => deleteNow({ keepalive: true }));
