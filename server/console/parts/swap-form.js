// Another checkpoint for a model, while calls go on: what will change is said first, and is to be confirmed.
import { get, json } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { t, told } from "../core/i18n.js";
import { Dialog, ErrorNote, Select } from "./basics.js";
import { useWork } from "./loading.js";

const shown = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : value ?? "–");

export function Change({ change }) {
  if (!change) return null;
  const lists = [[t("Added"), change.added], [t("Removed"), change.removed], [t("Changed"), change.changed]].filter(([, names]) => names.length);
  return html`<div class="panel" role="status">
    ${lists.length === 0 && html`<p>${t("No model has changed.")}</p>`}
    ${lists.map(([name, names]) => html`<p key=${name}>${name}: ${names.join(", ")}</p>`)}
    ${change.settings.map((setting) => html`<p key=${setting.key} class="small"><span class="mono">${setting.key}: ${shown(setting.old)} → ${shown(setting.new)}</span> <span class="dim">${setting.why}</span></p>`)}
    ${change.kept.map((setting) => html`<p key=${setting.key} class="small"><span class="mono">${setting.key}: ${shown(setting.old)}</span> ${t("stays")} <span class="dim">${setting.why}</span></p>`)}
    ${Object.entries(change.loaded).map(([name, text]) => html`<p key=${name} class="small dim">${name}: ${text}</p>`)}
  </div>`;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Starts a change of the catalog, and tells its stages until it has ended. Throws its error.
export async function changeCatalog(path, body, show) {
  let swap = await json("POST", path, body, { headers: { Prefer: "respond-async" } });
  while (swap.state === "running") {
    show(swap);
    await pause(1000);
    swap = await get(`/admin/swaps/${swap.id}`);
  }
  show(swap);
  if (swap.error) throw Object.assign(new Error(swap.error.message), swap.error);
}

export function Progress({ swap }) {
  return html`<p role="status">${t("Working: {stage}", { stage: told(swap?.stage ?? "…") })}</p>
    <progress aria-label=${t("Working: {stage}", { stage: "" })}></progress>`;
}

// The models that change with this one: those that are drawn by the same checkpoint.
const together = (model, found) => found.find((one) => one.models.includes(model))?.models ?? [model];

function Confirm({ chosen, found, onYes, onNo }) {
  const models = [...new Set(together(chosen.model, found))];
  return html`<${Dialog} label=${t("Swap a checkpoint")} onClose=${onNo}>
    <div class="form">
      <h2>${t("Swap a checkpoint")}</h2>
      <p>${t("{checkpoint} will draw these models:", { checkpoint: chosen.checkpoint })}</p>
      <ul>${models.map((name) => html`<li key=${name}>${name}</li>`)}</ul>
      <p class="dim small">${t("Running calls end with the old one. If the new one cannot be loaded, nothing changes.")}</p>
      <div class="actions"><button type="button" class="primary" onClick=${onYes}>${t("Swap now")}</button>
        <form method="dialog"><button>${t("Leave it")}</button></form></div>
    </div>
  </${Dialog}>`;
}

// `found` are the checkpoints on the disk, with the models that each draws.
export function SwapForm({ found, onDone }) {
  const models = [...new Set(found.flatMap((one) => one.models))];
  const [model, setModel] = useState("");
  const [checkpoint, setCheckpoint] = useState("");
  const [keeps, setKeeps] = useState(false);
  const [asks, setAsks] = useState(false);
  const [swap, setSwap] = useState(null);
  const work = useWork();
  const chosen = { model: model || models[0], checkpoint };
  const current = found.find((one) => one.models.includes(chosen.model))?.name;
  const others = found.map((one) => one.name).filter((name) => name !== current);
  const start = (path, body) => work.run(async () => {
    setAsks(false);
    setSwap(null);
    await changeCatalog(path, body, setSwap);
    onDone();
  });
  const submit = (event) => {
    event.preventDefault();
    setAsks(true);
  };
  const confirm = html`<${Confirm} chosen=${chosen} found=${found} onNo=${() => setAsks(false)} onYes=${() => start("/admin/swap", { ...chosen, keep_settings: keeps })} />`;
  return html`${asks && confirm}<form class="panel form" onSubmit=${submit}>
    <h2>${t("Swap a checkpoint")}</h2>
    <div class="row">
      <${Select} id="model" label=${t("Model")} value=${chosen.model} options=${models} onChange=${(name) => { setModel(name); setCheckpoint(""); }} />
      <${Select} id="checkpoint" label=${t("Checkpoint")} required value=${checkpoint} options=${[["", t("now {name}", { name: current ?? "–" })], ...others]} onChange=${setCheckpoint} />
    </div>
    <label for="keeps"><input id="keeps" type="checkbox" checked=${keeps} onChange=${(event) => setKeeps(event.target.checked)} />${t("Keep the settings of the old one")}</label>
    <div class="actions">
      <button class="primary" disabled=${work.busy}>${t("Swap")}</button>
      <button type="button" disabled=${work.busy} onClick=${() => start("/admin/undo")}>${t("Undo the last swap")}</button>
      <button type="button" disabled=${work.busy} onClick=${() => start("/admin/reload")}>${t("Reload the catalog")}</button>
    </div>
    ${work.busy && html`<${Progress} swap=${swap} />`}
    <${ErrorNote} error=${work.error} />
    <${Change} change=${swap?.change} />
  </form>`;
}
