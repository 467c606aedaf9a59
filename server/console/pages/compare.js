// Compare: the same prompt along two axes, its price first; and for operators, checkpoints side by side.
import { resultPath } from "../core/api.js";
import { html } from "../core/html.js";
import { money, N, t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { DIGITS, Field, Page, Select } from "../parts/basics.js";
import { Checkpoints } from "../parts/checkpoint-sheet.js";
import { comparison, drawTheRest, planOf, priceOf, setForm, startComparison, stopComparison, valuesOf } from "../state/comparison.js";
import { drawingModels, findModel, models } from "../state/models.js";
import { session } from "../state/session.js";

const AXES = { none: N("nothing"), seed: N("Seed"), steps: N("Steps"), guidance: N("Guidance"), quality: N("Quality"), model: N("Model") };
const MOST_CELLS = 36;

function Axis({ id, label, axis, onChange, catalog }) {
  const suggestions = { seed: "1, 2, 3", steps: "2, 4, 8", guidance: "1, 2, 4", quality: "low, high", model: drawingModels(catalog).slice(0, 2).map((model) => model.id).join(", "), none: "" };
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

export default function Compare({ title }) {
  const catalog = useStore(models);
  const { operator } = useStore(session);
  const all = drawingModels(catalog);
  const { form: typed, sheet, cells, busy } = useStore(comparison);
  const form = { ...typed, model: findModel(all, typed.model)?.id ?? all[0]?.id };
  const plan = planOf(form);
  const number = plan.flat().length;
  const same = form.x.name !== "none" && form.x.name === form.y.name;
  const submit = (event) => {
    event.preventDefault();
    startComparison(form);
  };
  const isWhole = sheet && planOf(sheet).every((row, y) => row.every((_, x) => cells[`${y},${x}`]?.url));
  const model = findModel(all, form.model);
  return html`<${Page} title=${title}>
    <form class="form" onSubmit=${submit}>
      <${Field} as="textarea" id="prompt" rows="2" required label=${t("Prompt")} value=${form.prompt} onInput=${(event) => setForm({ prompt: event.target.value })} />
      <div class="row">
        <${Select} id="model" label=${t("Model")} value=${model?.id} options=${all.map((each) => [each.id, `${each.id} · ${each.tier}`])} onChange=${(value) => setForm({ model: value })} />
        <${Select} id="size" label=${t("Aspect ratio")} value=${form.size} options=${model?.ratios ?? []} onChange=${(size) => setForm({ size })} />
        <${Field} id="seed" ...${DIGITS} required label=${t("Seed")} value=${form.seed} onInput=${(event) => setForm({ seed: event.target.value })} />
      </div>
      <div class="halves">
        <${Axis} id="x" label=${t("Columns")} axis=${form.x} catalog=${catalog} onChange=${(x) => setForm({ x })} />
        <${Axis} id="y" label=${t("Rows")} axis=${form.y} catalog=${catalog} onChange=${(y) => setForm({ y })} />
      </div>
      ${same && html`<p class="bad">${t("Columns and rows must differ.")}</p>`}
      ${number > MOST_CELLS && html`<p class="bad">${t("These are {number} images; a sheet has {most} at most.", { number, most: MOST_CELLS })}</p>`}
      <div class="actions">
        <button class="primary" disabled=${busy || same || number > MOST_CELLS || number === 0}>${t("Generate {number} images", { number })} · ${money(priceOf(plan, catalog))}</button>
        ${busy && html`<button type="button" onClick=${stopComparison}>${t("Stop")}</button>`}
      </div>
    </form>
    ${sheet && html`<${Sheet} sheet=${sheet} cells=${cells} />`}
    ${sheet && !busy && !isWhole && html`<div class="actions"><button type="button" onClick=${drawTheRest}>${t("Draw what is missing")}</button></div>`}
    ${operator && html`<${Checkpoints} />`}
  </${Page}>`;
}
