// The operator's comparison of checkpoints: its form, and a sheet that the server draws whatever page is shown.
import { call, get, json } from "../core/api.js";
import { BASE } from "../core/base.js";
import { toNumber } from "../core/json.js";
import { createStore } from "../core/store.js";
import { keep } from "./work.js";

const LOOK_MS = 1000;
const FORM = { candidates: [], prompts: "a red boat at sunset", seeds: "1, 2", size: "512x512", steps: "", guidance: "" };

// `job` is the state of the comparison that was begun last, as the server tells it.
export const grid = createStore({ form: FORM, job: null, error: null });
const setGrid = (values) => grid.set((before) => ({ ...before, ...values }));
export const setForm = (values) => grid.set((before) => ({ ...before, form: { ...before.form, ...values } }));

const given = (values) => Object.fromEntries(Object.entries(values).filter(([, text]) => text !== "").map(([name, text]) => [name, toNumber(text)]));

export const bodyOf = ({ candidates, prompts, seeds, size, steps, guidance }) => ({
  candidates: candidates.map((name) => ({ name, sampling: given({ steps, guidance }) })),
  prompts: prompts.split("\n").map((line) => line.trim()).filter(Boolean),
  seeds: seeds.split(",").map(toNumber),
  size,
});

const path = (id) => `/admin/checkpoints/proof/${id}`;
export const sheetOf = (job) => `${BASE}${path(job.id)}/sheet`;

// Looks at the job until it has ended or another one is begun.
async function follow(id) {
  while (grid.get().job?.id === id && grid.get().job.state === "running") {
    await new Promise((next) => setTimeout(next, LOOK_MS));
    try {
      const job = await get(path(id));
      if (grid.get().job?.id === id) setGrid({ job });
    } catch (error) {
      if (error.status !== 404) continue; // the server is out of reach
      setGrid({ job: null, error }); // it has restarted
    }
  }
}

export async function startGrid() {
  setGrid({ job: null, error: null });
  try {
    const job = await json("POST", "/admin/checkpoints/proof", bodyOf(grid.get().form), { headers: { Prefer: "respond-async" } });
    setGrid({ job });
    follow(job.id);
  } catch (error) {
    setGrid({ error });
  }
}

export async function stopGrid() {
  try {
    await call("DELETE", `/admin/jobs/${grid.get().job.id}`);
  } catch (error) {
    if (error.status !== 404) setGrid({ error }); // else it had ended already
  }
}

keep("grid", grid, { role: "operator", pack: ({ form, job }) => ({ form, job }), restore: (kept) => {
  setGrid({ ...kept, error: null });
  if (kept.job) follow(kept.job.id);
} });
