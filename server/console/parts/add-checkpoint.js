// A checkpoint of the disk that no model names yet: what is in it, the catalog file that would be written, and its models
// in service.
import { json } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { bytes, t } from "../core/i18n.js";
import { ErrorNote, Field, Select } from "./basics.js";
import { useWork } from "./loading.js";
import { Change, changeCatalog, Progress } from "./swap-form.js";

const TIERS = ["1K", "2K", "4K"];
const LACKING = { name: "", price: "", base: "", config: "" };

function Findings({ found }) {
  const values = Object.entries(found.suggested).map(([name, one]) => `${name} ${one.value} (${one.found})`);
  return html`<div class="form" role="status">
    <p>${found.class_name ?? "–"} · ${t("{size} of memory in bfloat16", { size: bytes(found.bytes_in_bfloat16) })}</p>
    ${found.problems.map((text) => html`<p key=${text} class="bad">${text}</p>`)}
    ${found.needs.length > 0 && html`<p class="warn">${t("It needs packages that are not installed: {names}", { names: found.needs.join(", ") })}</p>`}
    <p class="small">${t("It can: {names}", { names: found.supports.join(", ") || "–" })}</p>
    <p class="small">${t("Found values: {values}", { values: values.join("; ") || "–" })}</p>
    ${found.notes.map((text) => html`<p key=${text} class="small dim">${text}</p>`)}
  </div>`;
}

const filled = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));

// `found` are the checkpoints on the disk.
export function AddCheckpoint({ found, onDone }) {
  const names = found.filter((one) => one.state === "not in the catalog").map((one) => one.name);
  const [chosen, setChosen] = useState("");
  const [values, setValues] = useState(LACKING);
  const [tiers, setTiers] = useState(["1K"]);
  const [findings, setFindings] = useState(null);
  const [added, setAdded] = useState(null);
  const [change, setChange] = useState(null);
  const work = useWork();
  const checkpoint = chosen || names[0];
  const about = filled({ base: values.base, config: values.config });
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const choose = (name) => {
    setChosen(name);
    setFindings(null);
  };
  const inspect = (event) => {
    event.preventDefault();
    work.run(async () => {
      setFindings(null);
      setAdded(null);
      setFindings(await json("POST", "/admin/checkpoints/inspect", { checkpoint, ...about }));
    });
  };
  const add = () => work.run(async () => {
    setChange(null);
    setAdded(await json("POST", "/admin/checkpoints/add", { checkpoint, tiers, ...filled(values) }));
    setFindings(null);
    await changeCatalog("/admin/reload", undefined, setChange);
    onDone();
  });
  const toggle = (tier) => setTiers(TIERS.filter((each) => (each === tier) !== tiers.includes(each)));
  if (!names.length && !added) return html`<p class="dim small">${t("Every checkpoint in the weights folder is in the catalog. Put another one there to add it.")}</p>`;
  return html`<form class="panel form" onSubmit=${inspect}>
    <h2>${t("Add a checkpoint")}</h2>
    ${names.length > 0 && html`<div class="row">
      <${Select} id="new-checkpoint" label=${t("Checkpoint")} value=${checkpoint} options=${names} onChange=${choose} />
      <${Field} id="base" label=${t("Folder of the other parts")} placeholder=${t("found by itself")} value=${values.base} onInput=${set("base")} />
      <${Field} id="config" label=${t("Folder of the configs")} placeholder=${t("found by itself")} value=${values.config} onInput=${set("config")} />
      <button disabled=${work.busy}>${t("Inspect")}</button>
    </div>`}
    ${findings && html`<${Findings} found=${findings} />`}
    ${findings && !findings.problems.length && html`<div class="form">
      <div class="row">
        <${Field} id="name" label=${t("Name of the model")} placeholder=${t("by its file")} pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" value=${values.name} onInput=${set("name")} />
        <${Field} id="price" label=${t("Price of a call")} placeholder=${t("as its family's")} inputmode="decimal" value=${values.price} onInput=${set("price")} />
      </div>
      <fieldset class="actions"><legend>${t("Sizes")}</legend>
        ${TIERS.map((tier) => html`<label key=${tier}><input type="checkbox" name="tiers" value=${tier} checked=${tiers.includes(tier)} onChange=${() => toggle(tier)} />${tier}</label>`)}</fieldset>
      <p class="small dim">${t("A file is written to the catalog, which is then reloaded: the other models go on meanwhile. If it cannot be loaded, they stay as they are.")}</p>
      <div class="actions"><button type="button" class="primary" disabled=${work.busy || !tiers.length} onClick=${add}>${t("Add it and serve it")}</button></div>
    </div>`}
    ${work.busy && added && html`<${Progress} swap=${change} />`}
    <${ErrorNote} error=${work.error} />
    ${added && html`<details><summary>${t("Written: {file}", { file: added.file.split("/").pop() })}</summary><pre class="mono" tabindex="0">${added.text}</pre></details>`}
    <${Change} change=${change?.change} />
  </form>`;
}
