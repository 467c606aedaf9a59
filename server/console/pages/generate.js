// Generate: a form, and the calls that it started.
import { BASE } from "../core/base.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { money, t } from "../core/i18n.js";
import { stringify } from "../core/json.js";
import { useStore } from "../core/store.js";
import { Copy, DIGITS, Empty, ErrorNote, Field, Page, Select, useNamedField } from "../parts/basics.js";
import { JobCard, useBegun } from "../parts/job-card.js";
import { useWork } from "../parts/loading.js";
import { Images, imagesOf } from "../parts/images.js";
import { ModelExtras } from "../parts/model-extras.js";
import { PromptField } from "../parts/prompt.js";
import { Quality } from "../parts/quality.js";
import { Recalled } from "../parts/recalled.js";
import { References } from "../parts/references.js";
import { bodyOf, chosenModel, draft, setDraft } from "../state/draft.js";
import { findRunning, jobs, startJob } from "../state/jobs.js";
import { can, chatModels, drawingModels, models } from "../state/models.js";
import { canTell, setTells, tells } from "../state/watch.js";

const ADVANCED = ["negative_prompt", "steps", "guidance", "strength", "batch", "scheduler"];

// The shape itself, drawn within 28 by 28.
function Shape({ ratio }) {
  const [width, height] = ratio.split(":").map(Number);
  const scale = 24 / Math.max(width, height);
  const [w, h] = [Math.max(3, width * scale), Math.max(3, height * scale)];
  return html`<svg viewBox="0 0 28 28" aria-hidden="true"><rect x=${14 - w / 2} y=${14 - h / 2} width=${w} height=${h}
    rx="1.5" fill="none" stroke="currentColor" stroke-width="1.5" /></svg>`;
}

function Ratios({ model, value }) {
  const chosen = model.ratios.find((ratio) => model.sizes[ratio] === value) ?? value; // a recalled image has pixels
  const own = !model.ratios.includes(chosen) && value !== "auto";
  return html`<fieldset><legend>${t("Aspect ratio")}</legend><div class="ratios" id="size">
    ${[...model.ratios, ...(own ? [value] : [])].map((ratio) => html`<label key=${ratio} title=${model.sizes[ratio]} class=${ratio.includes("x") ? "wide" : ""}>
      <input type="radio" name="size" value=${ratio} checked=${chosen === ratio} onChange=${() => setDraft({ size: ratio })} />
      ${ratio.includes(":") ? html`<${Shape} ratio=${ratio} />` : null}${ratio}
    </label>`)}
  </div></fieldset>`;
}

function More({ model, values, set }) {
  const details = useRef();
  useLayoutEffect(() => {
    if (values.recalled && (ADVANCED.some((name) => values[name] !== "") || Object.keys(values.loras).length)) details.current.open = true; // shows what was filled
  }, [values.recalled]);
  const number = (name, label, limits) => html`<${Field} id=${name} label=${label} type="number" placeholder=${t("auto")}
    value=${values[name]} onInput=${set(name)} ...${limits} />`;
  const alone = !values.references.length;
  return html`<details ref=${details}><summary>${t("Advanced")}</summary><div class="form">
    ${can(model, "negative_prompt") && html`<${Field} id="negative_prompt" label=${t("Negative prompt")} value=${values.negative_prompt} onInput=${set("negative_prompt")} />`}
    <div class="row">
      ${number("steps", t("Steps"), { min: 1, max: model.limits.max_steps })}
      ${number("guidance", t("Guidance"), { min: 0, max: 50, step: "any" })}
      ${number("strength", t("Strength"), { min: 0, max: 1, step: "any", disabled: alone, placeholder: alone ? "–" : t("auto"), title: alone ? t("with a reference image") : undefined })}
    </div>
    <${ModelExtras} model=${model} values=${values} onChange=${setDraft} />
    ${chatModels(models.get()).length > 0 && html`<label for="enhance"><input id="enhance" type="checkbox" checked=${values.enhance ?? model.enhance} onChange=${(event) => setDraft({ enhance: event.target.checked })} />${t("Let a chat model rewrite the prompt")}</label>`}
    <label for="batch"><input id="batch" type="checkbox" checked=${values.batch === "exact"} onChange=${(event) => setDraft({ batch: event.target.checked ? "exact" : "" })} />${t("Draw it alone: the same bits each time")}</label>
  </div></details>`;
}

// The seed is new for each call, unless it is kept.
function Seeds({ seed }) {
  const last = useStore(jobs).find((job) => job.result)?.result.data.at(0)?.seed;
  return html`<div class="quick">
    ${seed !== "" && html`<button type="button" class="plain" onClick=${() => setDraft({ seed: "" })}>${t("A new seed each time")}</button>`}
    ${last != null && String(last) !== seed && html`<button type="button" class="plain" onClick=${() => setDraft({ seed: String(last) })}>${t("Keep the last seed, {seed}", { seed: last })}</button>`}
  </div>`;
}

const shellQuoted = (body) => stringify(body).replaceAll("'", "'\\''");
const curlOf = (body) => `curl ${location.origin}${BASE}/v1/images/generations -H "Authorization: Bearer $DARKROOM_API_KEY" -H 'Content-Type: application/json' -d '${shellQuoted(body)}'`;

function Form({ onSubmit, work }) {
  const values = useStore(draft);
  useStore(models);
  const notifies = useStore(tells);
  const form = useRef();
  const model = chosenModel(values);
  const set = (name) => (event) => setDraft({ [name]: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    onSubmit(values);
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.current.requestSubmit();
  };
  useLayoutEffect(() => {
    if (values.recalled) scrollTo(0, 0);
  }, [values.recalled]);
  const choices = drawingModels(models.get()).map((each) => [each.id, `${each.id} · ${each.tier}`]);
  return html`<form class="form" ref=${form} onSubmit=${submit} onKeyDown=${keys}>
    <${PromptField} label=${t("Prompt")} rows="4" model=${model}
      placeholder=${t("a red boat at sunset")} value=${values.prompt} onInput=${set("prompt")} hint=${t("Ctrl+Enter generates.")} />
    <${Select} id="model" label=${t("Model")} options=${choices} value=${model.id} onChange=${(id) => setDraft({ model: id })} />
    <${Ratios} model=${model} value=${values.size} />
    <div class="row">
      <${Quality} model=${model} values=${values} onChange=${setDraft} />
      ${can(model, "transparent") && html`<${Select} id="background" label=${t("Background")} value=${values.background}
        options=${[["", t("opaque")], ["transparent", t("transparent")]]} onChange=${(background) => setDraft({ background })} />`}
      <${Field} id="n" label=${t("Images")} type="number" min="1" max=${model.limits.max_n} required value=${values.n} onInput=${set("n")} />
      <${Field} id="seed" label=${t("Seed")} ...${DIGITS} placeholder=${t("random")} value=${values.seed} onInput=${set("seed")} />
    </div>
    <${Seeds} seed=${values.seed} />
    ${model.max_references > 0 && html`<${References} sources=${values.references} most=${model.max_references} onChange=${(references) => setDraft({ references })} />`}
    <${More} model=${model} values=${values} set=${set} />
    <${Recalled} also=${values.also} lost=${values.lost} onChange=${setDraft} />
    <div class="actions bar"><button class="primary" disabled=${work.busy}>${t("Generate")} · ${money(model.price)}</button></div>
    <div class="actions">
      ${canTell() && html`<label for="tells"><input id="tells" type="checkbox" checked=${notifies} onChange=${(event) => setTells(event.target.checked)} />${t("Notify me when it is done")}</label>`}
      <${Copy} text=${() => curlOf(bodyOf(values))}>${t("Copy as curl")}</${Copy}>
    </div>
    <${ErrorNote} error=${work.error} />
  </form>`;
}

export default function Generate({ title }) {
  const all = useStore(jobs);
  const work = useWork();
  useEffect(() => {
    findRunning().catch((error) => console.error(error)); // the page works without them
  }, []);
  useNamedField(work.error);
  const [begun, setBegun] = useState(null);
  useBegun(begun);
  const start = (values) => work.run(async () => setBegun(await startJob({ ...bodyOf(values), partial_images: 3 })));
  const open = all.filter((job) => job.state !== "succeeded");
  const done = all.filter((job) => job.state === "succeeded").flatMap(imagesOf);
  return html`<${Page} title=${title}>
    <div class="two">
      ${drawingModels(models.get()).length ? html`<${Form} onSubmit=${start} work=${work} />` : html`<${Empty}>${t("The catalog has no image model.")}</${Empty}>`}
      <section aria-label=${t("Results")} class="form">
        <p class="hidden-text" role="status">${t("{running} running, {done} images", { running: open.length, done: done.length })}</p>
        ${open.length > 0 && html`<div class="images">${open.map((job) => html`<${JobCard} key=${job.id} job=${job} onAgain=${setBegun} />`)}</div>`}
        ${done.length > 0 ? html`<${Images} images=${done} />` : open.length === 0 && html`<${Empty}>${t("Images appear here. The gallery keeps them.")}</${Empty}>`}
      </section>
    </div>
  </${Page}>`;
}
