// Compare: the same prompt along two axes, its price first; and for operators, checkpoints side by side.
import { resultPath } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { money, N, t } from "../core/i18n.js";
import { stringify, toNumber } from "../core/json.js";
import { useStore } from "../core/store.js";
import { DIGITS, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { Checkpoints } from "../parts/checkpoint-sheet.js";
import { useWork } from "../parts/loading.js";
import { cancelJob, finished, startJob } from "../state/jobs.js";
import { findModel, imageModels, models } from "../state/models.js";
import { session } from "../state/session.js";

const AXES = { none: N("nothing"), seed: N("Seed"), steps: N("Steps"), guidance: N("Guidance"), quality: N("Quality"), model: N("Model") };
const NUMBERS = new Set(["seed", "steps", "guidance"]);
const MOST_CELLS = 36;
const AT_ONCE = 2;

const valuesOf = (axis, text) => (axis === "none" ? [null] : text.split(",").map((value) => value.trim()).filter(Boolean));

// One body for each cell, by rows.
export function planOf({ prompt, model, size, seed, x, y }) {
  const base = { model, prompt: prompt.trim(), size, seed: toNumber(seed) };
  const set = (axis, value) => (axis.name === "none" ? {} : { [axis.name]: NUMBERS.has(axis.name) ? toNumber(value) : value });
  return valuesOf(y.name, y.values).map((row) => valuesOf(x.name, x.values).map((column) => ({ ...base, ...set(y, row), ...set(x, column) })));
}

export const priceOf = (plan, catalog) => plan.flat().reduce((sum, body) => sum + Number(findModel(catalog, body.model)?.price ?? 0), 0);

function Axis({ id, label, axis, onChange, catalog }) {
  const suggestions = { seed: "1, 2, 3", steps: "2, 4, 8", guidance: "1, 2, 4", quality: "low, high", model: imageModels(catalog).slice(0, 2).map((model) => model.id).join(", "), none: "" };
  return html`<div class="row">
    <${Select} id=${id} label=${label} value=${axis.name} options=${Object.entries(AXES).map(([name, text]) => [name, t(text)])}
      onChange=${(name) => onChange({ name, values: suggestions[name] })} />
    ${axis.name !== "none" && html`<${Field} id="${id}-values" label=${t("Values, with commas")} required value=${axis.values} onInput=${(event) => onChange({ ...axis, values: event.target.value })} />`}
  </div>`;
}

function Cell({ cell }) {
  if (cell?.url) return html`<a href=${resultPath(cell.url)} target="_blank" rel="noreferrer"><img src=${resultPath(cell.url)} alt=${cell.label} /></a>`;
  return html`<div class=${`cell ${cell?.error ? "bad" : "dim"}`}>${cell?.error ?? (cell?.id ? t("Running") : t("Waiting"))}</div>`;
}

function Sheet({ sheet, cells }) {
  const columns = valuesOf(sheet.x.name, sheet.x.values);
  const rows = valuesOf(sheet.y.name, sheet.y.values);
  const head = (axis, value) => (value == null ? "" : `${t(AXES[axis.name])} ${value}`);
  return html`<div class="sheet scroll" tabindex="0" role="region" aria-label=${t("Results")}><table>
    <thead><tr><td></td>${columns.map((value) => html`<th key=${value} scope="col">${head(sheet.x, value)}</th>`)}</tr></thead>
    <tbody>${rows.map((row, y) => html`<tr key=${row}><th scope="row">${head(sheet.y, row)}</th>
      ${columns.map((column, x) => html`<td key=${column}><${Cell} cell=${cells[`${y},${x}`]} /></td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// Draws the cells, some at once. What fails says why in its cell, and the others go on.
async function draw(plan, setCells, state) {
  const waiting = plan.flatMap((row, y) => row.map((body, x) => ({ place: `${y},${x}`, body })));
  const put = (place, values) => setCells((before) => ({ ...before, [place]: { ...before[place], ...values } }));
  const worker = async () => {
    for (let next = waiting.shift(); next && !state.stopped; next = waiting.shift()) {
      const { place, body } = next;
      try {
        const id = await startJob({ ...body, response_format: "url" });
        state.running.add(id);
        put(place, { id });
        const result = await finished(id);
        state.running.delete(id);
        put(place, { url: result.data[0].url, label: stringify(body) });
      } catch (error) {
        put(place, { error: error.message });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

export default function Compare({ title }) {
  const catalog = useStore(models);
  const { operator } = useStore(session);
  const all = imageModels(catalog);
  const [form, setForm] = useState({ prompt: "", model: all[0]?.id ?? "", size: "1:1", seed: "1", x: { name: "seed", values: "1, 2, 3" }, y: { name: "none", values: "" } });
  const [sheet, setSheet] = useState(null);
  const [cells, setCells] = useState({});
  const [state, setState] = useState(null);
  const work = useWork();
  const set = (values) => setForm({ ...form, ...values });
  const plan = planOf(form);
  const number = plan.flat().length;
  const same = form.x.name !== "none" && form.x.name === form.y.name;
  const submit = (event) => {
    event.preventDefault();
    const running = { stopped: false, running: new Set() };
    setSheet(form);
    setCells({});
    setState(running);
    work.run(() => draw(plan, setCells, running));
  };
  const stop = () => {
    state.stopped = true;
    for (const id of state.running) cancelJob(id).catch((error) => console.error(error));
  };
  const model = findModel(catalog, form.model) ?? all[0];
  return html`<${Page} title=${title}>
    <form class="form" onSubmit=${submit}>
      <${Field} as="textarea" id="prompt" rows="2" required label=${t("Prompt")} value=${form.prompt} onInput=${(event) => set({ prompt: event.target.value })} />
      <div class="row">
        <${Select} id="model" label=${t("Model")} value=${model?.id} options=${all.map((each) => [each.id, `${each.id} · ${each.tier}`])} onChange=${(value) => set({ model: value })} />
        <${Select} id="size" label=${t("Aspect ratio")} value=${form.size} options=${model?.ratios ?? []} onChange=${(size) => set({ size })} />
        <${Field} id="seed" ...${DIGITS} required label=${t("Seed")} value=${form.seed} onInput=${(event) => set({ seed: event.target.value })} />
      </div>
      <div class="halves">
        <${Axis} id="x" label=${t("Columns")} axis=${form.x} catalog=${catalog} onChange=${(x) => set({ x })} />
        <${Axis} id="y" label=${t("Rows")} axis=${form.y} catalog=${catalog} onChange=${(y) => set({ y })} />
      </div>
      ${same && html`<p class="bad">${t("Columns and rows must differ.")}</p>`}
      ${number > MOST_CELLS && html`<p class="bad">${t("These are {number} images; a sheet has {most} at most.", { number, most: MOST_CELLS })}</p>`}
      <div class="actions">
        <button class="primary" disabled=${work.busy || same || number > MOST_CELLS || number === 0}>${t("Generate {number} images", { number })} · ${money(priceOf(plan, catalog))}</button>
        ${work.busy && html`<button type="button" onClick=${stop}>${t("Stop")}</button>`}
      </div>
      <${ErrorNote} error=${work.error} />
    </form>
    ${sheet && html`<${Sheet} sheet=${sheet} cells=${cells} />`}
    ${operator && html`<${Checkpoints} />`}
  </${Page}>`;
}
