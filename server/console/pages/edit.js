// Edit: an image, what of it may change, and what it shall become.
import { resultPath } from "../core/api.js";
import { html, useEffect, useLayoutEffect, useRef } from "../core/html.js";
import { money, t } from "../core/i18n.js";
import { forgetQuery, Link, place } from "../core/router.js";
import { useStore } from "../core/store.js";
import { DIGITS, Empty, ErrorNote, Field, Page, Select, useNamedField } from "../parts/basics.js";
import { BeforeAfter } from "../parts/before-after.js";
import { Easel, maskOf } from "../parts/easel.js";
import { checkImage, IMAGE_TYPES, useIncoming } from "../parts/incoming.js";
import { JobCard, useBegun } from "../parts/job-card.js";
import { useWork } from "../parts/loading.js";
import { Images, imagesOf } from "../parts/images.js";
import { PromptField } from "../parts/prompt.js";
import { Quality } from "../parts/quality.js";
import { Recalled } from "../parts/recalled.js";
import { chosenEditor, edit, editFieldsOf, editors, referenceTo, setEdit, sourceOf } from "../state/draft.js";
import { jobs, startEdit } from "../state/jobs.js";
import { can, models } from "../state/models.js";

const ADVANCED = ["steps", "guidance", "strength"];

// The image before and after comes into view: it is below what was painted on, and on a phone below the form too.
function Compared({ id, before, after }) {
  const box = useRef();
  return html`<div ref=${box}><${BeforeAfter} id=${`share-${id}`} before=${before} after=${after} onLoad=${() => box.current.scrollIntoView({ block: "nearest" })} /></div>`;
}

// What is opened by the address, chosen, dropped or pasted is the image to edit, without the paint of the one before.
function useImage(work) {
  const named = useStore(place).query.get("image");
  useEffect(() => {
    if (named && edit.get().image !== referenceTo(named)) setEdit({ image: referenceTo(named), strokes: [], lost: [] });
  }, [named]);
  const take = ([file]) => file && work.run(async () => {
    await checkImage(file);
    forgetQuery();
    setEdit({ image: file, strokes: [] });
  });
  useIncoming(take);
  return (event) => {
    const files = [...event.target.files];
    event.target.value = ""; // the same file can be chosen again
    take(files);
  };
}

function EditForm({ all, model, values, work, onChoose, onSubmit }) {
  const form = useRef();
  const details = useRef();
  useNamedField(work.error);
  useLayoutEffect(() => {
    if (values.recalled && ADVANCED.some((name) => values[name] !== "")) details.current.open = true; // shows what was filled
  }, [values.recalled]);
  const number = (name, label, limits) => html`<${Field} id=${name} label=${label} type="number" placeholder=${t("auto")} value=${values[name]} onInput=${set(name)} ...${limits} />`;
  const set = (name) => (event) => setEdit({ [name]: event.target.value });
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && values.image && !work.busy) form.current.requestSubmit();
  };
  return html`<form class="form" ref=${form} onSubmit=${onSubmit} onKeyDown=${keys}>
    <label for="image">${t("Image: choose, drop or paste one")}<input id="image" type="file" accept=${IMAGE_TYPES} onChange=${onChoose} /></label>
    <${PromptField} rows="3" model=${model} label=${t("What to change")} placeholder=${t("make the boat blue")} hint=${t("Ctrl+Enter generates.")} value=${values.prompt} onInput=${set("prompt")} />
    <${Select} id="model" label=${t("Model")} value=${model.id} options=${all.map((each) => [each.id, `${each.id} · ${each.tier}`])} onChange=${(id) => setEdit({ model: id })} />
    <div class="row">
      <${Select} id="size" label=${t("Size")} value=${values.size} options=${[["", t("as the image")], ...new Set([...model.ratios, values.size].filter(Boolean))]} onChange=${(size) => setEdit({ size })} />
      <${Quality} model=${model} values=${values} onChange=${setEdit} />
      <${Field} id="n" label=${t("Images")} type="number" min="1" max=${model.limits.max_n} required value=${values.n} onInput=${set("n")} />
      <${Field} id="seed" ...${DIGITS} label=${t("Seed")} placeholder=${t("random")} value=${values.seed} onInput=${set("seed")} />
    </div>
    <details ref=${details}><summary>${t("Advanced")}</summary><div class="row">
      ${number("steps", t("Steps"), { min: 1, max: model.limits.max_steps })}
      ${number("guidance", t("Guidance"), { min: 0, max: 50, step: "any" })}
      ${number("strength", t("Strength"), { min: 0, max: 1, step: "any" })}
    </div></details>
    <${Recalled} also=${values.also} lost=${values.lost} onChange=${setEdit} />
    <p class="small dim">${can(model, "mask")
      ? t("Paint over what may change. Without paint, the whole image may.")
      : t("This model takes no mask: the whole image may change.")}</p>
    <div class="actions bar"><button class="primary" disabled=${work.busy || !values.image}>${t("Generate")} · ${money(model.price)}</button></div>
    <${ErrorNote} error=${work.error} />
  </form>`;
}

// The edits of this page, with what each was made from.
function Results({ started }) {
  const running = useStore(jobs);
  const mine = started.map(({ id, image }) => ({ before: sourceOf(image), job: running.find((job) => job.id === id) })).filter(({ job }) => job);
  const done = mine.filter(({ job }) => job.state === "succeeded");
  const open = mine.filter(({ job }) => job.state !== "succeeded");
  useBegun(started[0]?.id); // the newest
  const again = (old) => (id) => setEdit({ started: edit.get().started.map((each) => (each.id === old ? { ...each, id } : each)) });
  return html`${open.map(({ job }) => html`<${JobCard} key=${job.id} job=${job} onAgain=${again(job.id)} />`)}
    ${done.map(({ job, before }) => html`<${Compared} key=${job.id} id=${job.id} before=${before} after=${resultPath(job.result.data[0].url)} />`)}
    ${done.length > 0 && html`<${Images} images=${done.flatMap(({ job }) => imagesOf(job))} />`}`;
}

export default function Edit({ title }) {
  const all = editors(useStore(models));
  const values = useStore(edit);
  const canvas = useRef();
  const work = useWork();
  const choose = useImage(work);
  const model = chosenEditor(values, all);
  if (!model) return html`<${Page} title=${title}><${Empty}>${t("No model here takes reference images.")}</${Empty}></${Page}>`;
  const { image, strokes } = values;
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const mask = can(model, "mask") ? await maskOf(canvas.current, strokes) : null;
      const id = await startEdit({ image: [image], mask, strokes, fields: { ...editFieldsOf(values), partial_images: 3 } });
      setEdit({ started: [{ id, image }, ...edit.get().started] });
    });
  };
  return html`<${Page} title=${title}>
    <div class="two">
      <${EditForm} all=${all} model=${model} values=${values} work=${work} onChoose=${choose} onSubmit=${submit} />
      <section class="form" aria-label=${t("Image")}>
        ${image
          ? html`<${Easel} source=${sourceOf(image)} canvas=${canvas} steps=${strokes} onSteps=${(steps) => setEdit({ strokes: steps })} enabled=${can(model, "mask")} />`
          : html`<${Empty}>${t("Choose an image, or open one from the gallery.")} <${Link} page="gallery">${t("Gallery")}</${Link}></${Empty}>`}
        <${Results} started=${values.started} />
      </section>
    </div>
  </${Page}>`;
}
