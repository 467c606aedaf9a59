// The comparison of a prompt along two axes: its form, and a sheet whose cells are drawn whatever page is shown.
import { stringify, toNumber } from "../core/json.js";
import { createStore } from "../core/store.js";
import { cancelJob, finished, startJob } from "./jobs.js";
import { findModel } from "./models.js";
import { keep } from "./work.js";

const NUMBERS = new Set(["seed", "steps", "guidance"]);
const AT_ONCE = 2;

// `sheet` is the form that was sent, `cells` what each place ("row,column") has come to: {id, url, label, error}.
const FORM = { prompt: "", model: "", size: "1:1", seed: "1", x: { name: "seed", values: "1, 2, 3" }, y: { name: "none", values: "" } };
export const comparison = createStore({ form: FORM, sheet: null, cells: {}, busy: false });
const setComparison = (values) => comparison.set((before) => ({ ...before, ...values }));
export const setForm = (values) => comparison.set((before) => ({ ...before, form: { ...before.form, ...values } }));
const put = (place, values) => comparison.set((before) => ({ ...before, cells: { ...before.cells, [place]: { ...before.cells[place], ...values } } }));

export const valuesOf = (axis, text) => (axis === "none" ? [null] : text.split(",").map((value) => value.trim()).filter(Boolean));

// One body for each cell, by rows.
export function planOf({ prompt, model, size, seed, x, y }) {
  const base = { model, prompt: prompt.trim(), size, seed: toNumber(seed) };
  const set = (axis, value) => (axis.name === "none" ? {} : { [axis.name]: NUMBERS.has(axis.name) ? toNumber(value) : value });
  return valuesOf(y.name, y.values).map((row) => valuesOf(x.name, x.values).map((column) => ({ ...base, ...set(y, row), ...set(x, column) })));
}

export const priceOf = (plan, catalog) => plan.flat().reduce((sum, body) => sum + Number(findModel(catalog, body.model)?.price ?? 0), 0);

let drawing = { stopped: true };

// Draws a cell, or waits for its call if it has one.
async function drawCell(place, body) {
  try {
    const { id: begun, once = crypto.getRandomValues(new Uint32Array(4)).join("-") } = comparison.get().cells[place] ?? {};
    put(place, { once }); // a page that is left meanwhile sends it again
    const id = begun ?? await startJob({ ...body, response_format: "url" }, once);
    put(place, { id, error: null });
    const result = await finished(id);
    put(place, { url: result.data[0].url, label: stringify(body) });
  } catch (error) {
    put(place, { id: null, error: error.message });
  }
}

// Draws the cells that are neither drawn nor failed, some at once. What fails says why in its cell, and the others go on.
async function draw() {
  const mine = { stopped: false };
  drawing = mine;
  const { sheet, cells } = comparison.get();
  const waiting = planOf(sheet).flatMap((row, y) => row.map((body, x) => ({ place: `${y},${x}`, body }))).filter(({ place }) => !cells[place]?.url && !cells[place]?.error);
  setComparison({ busy: true });
  const worker = async () => {
    for (let next = waiting.shift(); next && !mine.stopped; next = waiting.shift()) await drawCell(next.place, next.body);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (drawing === mine) setComparison({ busy: false });
}

export function startComparison(form) {
  setComparison({ sheet: form, cells: {} });
  return draw();
}

// Draws the cells that failed once more, and those that were not begun.
export function drawTheRest() {
  const left = Object.entries(comparison.get().cells).filter(([, cell]) => !cell.error);
  setComparison({ cells: Object.fromEntries(left) });
  return draw();
}

export function stopComparison() {
  drawing.stopped = true;
  const running = Object.values(comparison.get().cells).filter((cell) => cell.id && !cell.url);
  for (const { id } of running) cancelJob(id).catch((error) => console.error(error));
}

keep("comparison", comparison, { restore: (kept) => {
  comparison.set({ ...kept, busy: false });
  if (kept.busy) draw();
} });
