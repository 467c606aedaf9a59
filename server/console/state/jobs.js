// Image calls of this browser: started in the background and followed by their ids, so that leaving a page ends none.
// They outlive the page with what was sent, so that each can be sent again. The server knows all calls of the key: those of
// another browser that run are found too.
import { ApiError, get, json, readResult, resultName } from "../core/api.js";
import { stringify } from "../core/json.js";
import { createStore } from "../core/store.js";
import { keepSent } from "./sent-files.js";
import { keep } from "./work.js";

const MOST_KEPT = 60;
export const jobs = createStore([]); // newest first
const ENDED = new Set(["succeeded", "failed", "cancelled"]);
export const runs = (job) => !ENDED.has(job.state);

const change = (id, values) => jobs.set((all) => all.map((job) => (job.id === id ? { ...job, ...values } : job)));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function update(id, state) {
  const previews = Object.fromEntries((state.previews ?? []).map((preview) => [preview.image_index, `data:image/png;base64,${preview.b64_json}`]));
  jobs.set((all) => all.map((job) => (job.id === id ? { ...job, ...state, previews: { ...job.previews, ...previews } } : job)));
}

const isFromHere = (id) => Boolean(jobs.get().find((job) => job.id === id)?.request);

// What the server recorded of the images of a call that another page started. One may have been deleted since.
async function storedOf(result) {
  const entries = result.data.filter((item) => item.url).map((item) => get(`/v1/darkroom/results/${resultName(item.url)}`).catch((error) => {
    if (error.status !== 404) throw error;
    return null;
  }));
  return (await Promise.all(entries)).filter(Boolean);
}

const isOver = (id) => !jobs.get().some((job) => job.id === id && runs(job)); // ended, dismissed or signed out

async function follow(id) {
  while (!isOver(id)) {
    try {
      const state = await get(`/v1/images/jobs/${id}?previews=true`);
      if (state.state === "succeeded" && !isFromHere(id)) state.stored = await storedOf(state.result);
      update(id, state);
      if (ENDED.has(state.state)) return;
      await pause(state.position === 0 ? 500 : 1500);
    } catch (error) {
      if (error instanceof ApiError && error.status < 500) {
        change(id, { state: "failed", error });
        return;
      }
      await pause(3000); // the server is restarting or out of reach
    }
  }
}

function add(state, request) {
  jobs.set((all) => [{ request, previews: {}, ...state }, ...all.filter((job) => job.id !== state.id)]);
  follow(state.id);
}

// A reference that is no result of the server.
const isUploaded = (reference) => reference instanceof File || reference.startsWith("data:");

// The header leaves `background` to what is behind the image.
async function start(route, body, request, headers = {}) {
  const state = await json("POST", `/v1/images/${route}`, body, { headers: { Prefer: "respond-async", ...headers } });
  const { image = [], strokes = [] } = request;
  if (strokes.length || image.some(isUploaded)) await keepSent(state.id, image, strokes);
  add(state, { ...request, endpoint: `images.${route}` });
  return state.id;
}

// Starts a call, and returns its id. One that was sent with the same `once` before is not drawn again.
export const startJob = (body, once) => start("generations", body, body, once && { "Idempotency-Key": once });

// Starts to enlarge a result, by its address here.
export const startUpscale = (body) => start("upscale", body, { ...body, image: [body.image] });

// A form has text alone: objects are sent as JSON. A result is sent as its file, by which the server knows it again.
async function formOf({ image: [image], mask, fields }) {
  const form = new FormData();
  form.append("image", image instanceof File ? image : await readResult(image), image.name ?? "image.png");
  if (mask) form.append("mask", mask, "mask.png");
  for (const [name, value] of Object.entries(fields)) {
    form.append(name, typeof value === "object" ? stringify(value) : String(value));
  }
  return form;
}

// Starts an edit: `image` with the one image, the `mask` as a PNG or null, the `strokes` that made it, and the fields.
export const startEdit = async (request) => start("edits", await formOf(request), { ...request, prompt: request.fields.prompt });

const again = ({ image: [image], ...body }) => startUpscale({ ...body, image });

// Sends a call that has failed once more, in place of its card. Returns the new call's id.
export async function startAgain({ id, request: { endpoint, ...request } }) {
  const started = await ({ "images.edits": startEdit, "images.upscale": again }[endpoint] ?? startJob)(request);
  forgetJob(id);
  return started;
}

// The result of a call. Throws its error. One that this browser has not recorded is looked for on the server.
export async function finished(id) {
  for (;;) {
    const job = jobs.get().find((each) => each.id === id);
    if (!job) {
      add({ id, state: "queued" }, null);
      continue;
    }
    if (job.state === "succeeded") return job.result;
    if (!runs(job)) throw Object.assign(new Error(job.error?.message ?? job.state), { code: job.error?.code });
    await new Promise((resolve) => {
      const stop = jobs.subscribe(() => {
        stop();
        resolve();
      });
    });
  }
}

export async function cancelJob(id) {
  try {
    update(id, await json("POST", `/v1/images/jobs/${id}/cancel`));
  } catch (error) {
    if (error.status !== 404 && error.status !== 409) throw error; // it had ended already
  }
}

export const forgetJob = (id) => jobs.set((all) => all.filter((job) => job.id !== id));

// Finds the calls of the key that run already.
export async function findRunning() {
  for (const state of ["queued", "running"]) {
    const { data } = await get(`/v1/images/jobs?state=${state}&order=asc`);
    const known = new Set(jobs.get().map((job) => job.id)); // one may have been started here meanwhile
    for (const job of data) if (!known.has(job.id)) add(job, null);
  }
}

// An image that was deleted is in no call's result any more.
export const forgetImage = (name) => jobs.set((all) => all.map((job) => (
  job.result?.data ? { ...job, result: { ...job.result, data: job.result.data.filter((item) => !item.url || resultName(item.url) !== name) } } : job)));

// What of a call outlives the page: no previews, and an error as plain values.
const packed = ({ previews, error, ...job }) => ({ ...job, error: error && { message: error.message, code: error.code, param: error.param } });

function restore(kept) {
  const known = new Set(jobs.get().map((job) => job.id));
  const found = kept.filter((job) => !known.has(job.id)).map((job) => ({ ...job, previews: {} }));
  jobs.set((all) => [...all, ...found]);
  for (const job of found.filter(runs)) follow(job.id);
}

keep("jobs", jobs, { pack: (all) => all.slice(0, MOST_KEPT).map(packed), restore });
