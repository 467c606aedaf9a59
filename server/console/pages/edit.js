// Edit: a picture, what of it may change, and what it shall become.
import { resultPath } from "../core/api.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { money, t } from "../core/i18n.js";
import { place } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { Easel, maskOf } from "../parts/easel.js";
import { JobCard } from "../parts/job-card.js";
import { useWork } from "../parts/loading.js";
import { Pictures, picturesOf } from "../parts/picture.js";
import { PromptField } from "../parts/prompt.js";
import { jobs, startJob } from "../state/jobs.js";
import { can, findModel, imageModels, models } from "../state/models.js";

// The picture before and after, with a line between them that can be moved. It comes into view: it is below what was
// painted on, and on a phone below the form too.
function BeforeAfter({ before, after }) {
  const [share, setShare] = useState(50);
  const box = useRef();
  const show = () => box.current.scrollIntoView({ block: "nearest" });
  return html`<div class="form" ref=${box}>
    <div class="easel"><img src=${after} alt=${t("After")} onLoad=${show} />
      <img src=${before} alt=${t("Before")} style=${{ position: "absolute", inset: 0, width: "100%", height: "100%", clipPath: `inset(0 ${100 - share}% 0 0)` }} />
    </div>
    <${Field} id="share" type="range" min="0" max="100" label=${t("Before and after")} value=${share} onInput=${(event) => setShare(Number(event.target.value))} />
  </div>`;
}

function formOf({ file, mask, model, prompt, seed, strength }) {
  const form = new FormData();
  form.append("image", file, "image.png");
  if (mask) form.append("mask", mask, "mask.png");
  form.append("model", model.id);
  form.append("prompt", prompt.trim());
  form.append("background", "true");
  form.append("response_format", "url");
  form.append("partial_images", "3");
  if (seed !== "") form.append("seed", seed);
  if (strength !== "") form.append("strength", strength);
  return form;
}

function useSource() {
  const { query } = useStore(place);
  const named = query.get("image");
  const [source, setSource] = useState(null);
  useEffect(() => {
    if (named) setSource(resultPath(named));
  }, [named]);
  const choose = (event) => {
    const [file] = event.target.files;
    if (file) setSource(URL.createObjectURL(file));
  };
  return [source, choose];
}

export default function Edit({ title }) {
  const all = imageModels(useStore(models)).filter((model) => model.max_references > 0);
  const [source, choose] = useSource();
  const [steps, setSteps] = useState([]);
  const [values, setValues] = useState({ prompt: "", seed: "", strength: "", model: "" });
  const [started, setStarted] = useState([]);
  const canvas = useRef();
  const work = useWork();
  const running = useStore(jobs);
  const model = findModel(all, values.model) ?? all.find((each) => can(each, "mask")) ?? all[0];
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  useEffect(() => setSteps([]), [source]);
  if (!model) return html`<${Page} title=${title}><${Empty}>${t("No model here takes reference images.")}</${Empty}></${Page}>`;
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const file = await (await fetch(source)).blob();
      const mask = can(model, "mask") ? await maskOf(canvas.current, steps) : null;
      const id = await startJob(formOf({ ...values, file, mask, model }), { prompt: values.prompt, image: source.startsWith("/cdn/") ? [source] : [] });
      setStarted((before) => [{ id, source }, ...before]);
    });
  };
  const mine = started.map(({ id, source: before }) => ({ before, job: running.find((job) => job.id === id) })).filter(({ job }) => job);
  const done = mine.filter(({ job }) => job.state === "succeeded");
  const open = mine.filter(({ job }) => job.state !== "succeeded");
  return html`<${Page} title=${title}>
    <div class="two">
      <form class="form" onSubmit=${submit}>
        <label for="image">${t("Image")}<input id="image" type="file" accept="image/png,image/jpeg,image/webp" onChange=${choose} /></label>
        <${PromptField} rows="3" model=${model} label=${t("What it shall become")} value=${values.prompt} onInput=${set("prompt")} />
        <${Select} id="model" label=${t("Model")} value=${model.id} options=${all.map((each) => [each.id, `${each.id} · ${each.tier}`])} onChange=${(id) => setValues({ ...values, model: id })} />
        <div class="row">
          <${Field} id="seed" type="number" min="0" label=${t("Seed")} placeholder=${t("random")} value=${values.seed} onInput=${set("seed")} />
          <${Field} id="strength" type="number" min="0.05" max="1" step="0.05" label=${t("Strength")} placeholder=${t("auto")} value=${values.strength} onInput=${set("strength")} />
        </div>
        <p class="small dim">${can(model, "mask")
          ? t("Paint over what may change. Without paint, the whole image may.")
          : t("This model takes no mask: the whole image may change.")}</p>
        <div class="actions"><button class="primary" disabled=${work.busy || !source}>${t("Generate")} · ${money(model.price)}</button></div>
        <${ErrorNote} error=${work.error} />
      </form>
      <section class="form" aria-label=${t("Image")}>
        ${source
          ? html`<${Easel} source=${source} canvas=${canvas} steps=${steps} onSteps=${setSteps} enabled=${can(model, "mask")} />`
          : html`<${Empty}>${t("Choose an image, or open one from the gallery.")}</${Empty}>`}
        ${open.map(({ job }) => html`<${JobCard} key=${job.id} job=${job} />`)}
        ${done.map(({ job, before }) => html`<${BeforeAfter} key=${job.id} before=${before} after=${resultPath(job.result.data[0].url)} />`)}
        ${done.length > 0 && html`<${Pictures} pictures=${done.flatMap(({ job }) => picturesOf(job))} />`}
      </section>
    </div>
  </${Page}>`;
}
