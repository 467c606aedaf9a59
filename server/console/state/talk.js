// The conversation that is open: its turns and form outlive the page, and a turn that runs is joined again after a reload.
import { call, json } from "../core/api.js";
import { createStore } from "../core/store.js";
import { emptyTurn, loadTree, rejoinTurn, sendTurn, tipOf } from "./conversation.js";
import { deleteLater, deleteRoute } from "./deletions.js";
import { keep } from "./work.js";

// `turns` are all of the tree that is known, `tip` the one that the next continues, `live` the one that runs.
const NOTHING = { turns: [], tip: null, live: null, error: null };
export const talk = createStore({ ...NOTHING, form: { said: "", images: [], model: "", draws: true, image_model: "" } });
const setTalk = (values) => talk.set((before) => ({ ...before, ...values }));
export const setForm = (values) => talk.set((before) => ({ ...before, form: { ...before.form, ...values } }));
export const setTip = (tip) => setTalk({ tip });

// Takes what was said in a turn into the form, to be said another way: a branch beside it.
export function sayOtherwise({ parent, said, images }) {
  setTip(parent);
  setForm({ said, images });
}

let receiving = null; // the AbortController of the turn that runs

// A turn that has its id is the server's: its text leaves the form.
function show(live) {
  if (live.id && !talk.get().live.id) setForm({ said: "", images: [] });
  setTalk({ live });
}

function put(turn) {
  const isNothing = turn.status === "cancelled" && !turn.text && !turn.drawn.length;
  if (isNothing) setForm({ said: turn.said, images: turn.images }); // to be sent again
  else talk.set((before) => ({ ...before, turns: [...before.turns, turn], tip: turn.id }));
}

async function run(live, work) {
  receiving = new AbortController();
  setTalk({ live, error: null });
  try {
    put(await work(receiving.signal));
  } catch (error) {
    if (error.name !== "AbortError") setTalk({ error });
  } finally {
    setTalk({ live: null });
  }
}

export function say(model, tool) {
  const { tip, form } = talk.get();
  const turn = emptyTurn(tip, form.said.trim(), form.images);
  return run(turn, (signal) => sendTurn(turn, { model, tool }, show, signal));
}

// Stops what runs, on the server too: its stream then ends.
export async function stopTalk() {
  const { live } = talk.get();
  if (!live?.id) receiving?.abort();
  else await call("POST", `/v1/responses/${live.id}/cancel`).catch((error) => setTalk({ error }));
}

// Leaves what runs to the server.
export const leaveTalk = () => receiving?.abort();

export const startOver = () => setTalk(NOTHING);

// Opens a conversation by its first turn, at its newest one.
export async function openTalk(root) {
  try {
    const turns = await loadTree(root);
    setTalk({ ...NOTHING, turns, tip: tipOf(turns, turns.at(-1).id) });
  } catch (error) {
    setTalk({ error });
  }
}

export const renameTalk = (root, title) => json("PATCH", `/v1/darkroom/responses/${root}`, { title });

export function deleteTalk(root) {
  if (talk.get().turns.some(({ id }) => id === root)) startOver(); // it is the one that is open
  deleteLater("conversation", root, (options) => deleteRoute(`/v1/darkroom/responses/${root}`, options));
}

const packed = ({ error, live, ...kept }) => ({ ...kept, live: live?.id ? { id: live.id, parent: live.parent, said: live.said, images: live.images } : null });

function restore({ live, ...kept }) {
  setTalk(kept);
  if (live) run({ ...emptyTurn(live.parent, live.said, live.images), id: live.id }, (signal) => rejoinTurn(live, show, signal));
}

keep("talk", talk, { pack: packed, restore });
