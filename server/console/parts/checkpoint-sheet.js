// Models and checkpoints side by side on one sheet, before one of them is served. For operators; nothing is charged.
import { html } from "../core/html.js";
import { t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { grid, setForm, sheetOf, startGrid, stopGrid } from "../state/grid.js";
import { drawingModels, models } from "../state/models.js";
import { ErrorNote, Field } from "./basics.js";
import { useRoute } from "./loading.js";

function Choices({ label, names, chosen, notes = {} }) {
  const toggle = (name) => setForm({ candidates: chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name] });
  return html`<fieldset class="actions"><legend>${label}</legend>
    ${names.map((name) => html`<label key=${name}><input type="checkbox" name="candidates" value=${name} checked=${chosen.includes(name)} onChange=${() => toggle(name)} />${name}${notes[name]}</label>`)}
  </fieldset>`;
}

function Running({ job }) {
  const told = t("{drawn} of {total} images drawn", job);
  return html`<p role="status">${told} · ${t("It stands in the queue, and goes on when this page is left.")}</p>
    <progress aria-label=${told} max=${job.total} value=${job.drawn}></progress>
    <div class="actions"><button type="button" onClick=${stopGrid}>${t("Stop")}</button></div>`;
}

export function Checkpoints() {
  const { data, error: unread } = useRoute("/admin/checkpoints");
  const { form, job, error } = useStore(grid);
  const all = drawingModels(useStore(models)).map((model) => model.id);
  const found = data?.data ?? [];
  const set = (name) => (event) => setForm({ [name]: event.target.value });
  const runs = job?.state === "running";
  const submit = (event) => {
    event.preventDefault();
    startGrid();
  };
  const serving = Object.fromEntries(found.filter((one) => one.models.length).map((one) => [one.name, html` <span class="dim">(${t("as {model}", { model: one.models[0] })})</span>`]));
  return html`<form class="panel form" onSubmit=${submit}>
    <h2>${t("Checkpoints side by side")}</h2>
    <p class="dim small">${t("For operators, also for checkpoints that no model names yet. Nothing is charged.")} ${t("Each is drawn with the values of the catalog, or with those that were found in it if the catalog does not serve it.")}</p>
    <${Choices} label=${t("Checkpoints")} names=${found.map((one) => one.name)} chosen=${form.candidates} notes=${serving} />
    <${Choices} label=${t("Models")} names=${all} chosen=${form.candidates} />
    <${Field} as="textarea" id="prompts" rows="2" required label=${t("Prompts, one a line")} value=${form.prompts} onInput=${set("prompts")} />
    <div class="row">
      <${Field} id="seeds" required label=${t("Seeds, with commas")} value=${form.seeds} onInput=${set("seeds")} />
      <${Field} id="pixels" required pattern="[0-9]+x[0-9]+" label=${t("Size")} value=${form.size} onInput=${set("size")} />
      <${Field} id="grid-steps" type="number" min="1" max="200" label=${t("Steps")} placeholder=${t("its own")} value=${form.steps} onInput=${set("steps")} />
      <${Field} id="grid-guidance" type="number" min="0" max="50" step="any" label=${t("Guidance")} placeholder=${t("its own")} value=${form.guidance} onInput=${set("guidance")} />
    </div>
    <div class="actions"><button disabled=${runs || !form.candidates.length}>${t("Draw the sheet")}</button></div>
    ${runs && html`<${Running} job=${job} />`}
    ${job?.state === "cancelled" && html`<p class="dim" role="status">${t("The comparison was cancelled.")}</p>`}
    <${ErrorNote} error=${unread ?? error ?? (job?.state === "failed" ? job.error : null)} />
    ${job?.state === "succeeded" && html`<img src=${sheetOf(job)} alt=${t("The sheet: a column for each checkpoint")} style=${{ maxWidth: "100%" }} />
      <div class="actions"><a class="button" href=${sheetOf(job)} download="proof.png">${t("Download")}</a></div>`}
  </form>`;
}
