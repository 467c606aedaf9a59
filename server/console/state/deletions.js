// What a person deletes: at first it only leaves the lists, and can come back. The deed follows a little later, or when
// the page is left; if it fails, it comes back.
import { call } from "../core/api.js";
import { createStore } from "../core/store.js";
import { forgetImage } from "./jobs.js";

export const UNDO_MS = 10_000;
export const waiting = createStore([]); // {id, kind, act, timer}, newest last: they can come back
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
  const one = take(id);
  try {
    await one?.act(options);
  } catch (error) {
    bringBack(id);
    failed.set(error);
  }
}

// `kind` is "image", "chat" or "conversation", and `act(options)` deletes it; the options are those of a call.
export function deleteLater(kind, id, act) {
  if (deleted.get().has(id)) return;
  failed.set(null);
  hide(id);
  waiting.set((all) => [...all, { id, kind, act, timer: setTimeout(() => send(id), UNDO_MS) }]);
}

// Deletes by a route. What is gone already is deleted.
export const deleteRoute = (path, options) => call("DELETE", path, undefined, options).catch((error) => {
  if (error.status !== 404) throw error;
});

export const deleteImage = (id) => deleteLater("image", id, async (options) => {
  await deleteRoute(`/v1/darkroom/results/${id}`, options);
  forgetImage(id);
});

export function undoDeletion() {
  for (const { id } of waiting.get()) {
    take(id);
    bringBack(id);
  }
}

// Deletes all that wait.
export const deleteNow = (options) => Promise.all(waiting.get().map(({ id }) => send(id, options)));

addEventListener("pagehide", () => deleteNow({ keepalive: true }));
