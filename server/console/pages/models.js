// Models: what is served, what is on the disk, another checkpoint for a model while calls go on, and every server with
// its workers.
import { get, json } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { bytes, t, told, when } from "../core/i18n.js";
import { ErrorNote, Page, Select, Table } from "../parts/basics.js";
import { useRoute, useWork } from "../parts/loading.js";

function Change({ change }) {
  if (!change) return null;
  const lists = [[t("Added"), change.added], [t("Removed"), change.removed], [t("Changed"), change.changed]].filter(([, names]) => names.length);
  return html`<div class="panel" role="status">
    ${lists.length === 0 && html`<p>${t("No model has changed.")}</p>`}
    ${lists.map(([name, names]) => html`<p key=${name}>${name}: ${names.join(", ")}</p>`)}
    ${change.settings.map((setting) => html`<p key=${setting.key} class="small mono">${setting.key}: ${shown(setting.old)} → ${shown(setting.new)}</p>`)}
    ${Object.entries(change.loaded).map(([name, text]) => html`<p key=${name} class="small dim">${name}: ${text}</p>`)}
  </div>`;
}

const shown = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : value ?? "–");

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Starts a change of the catalog, and tells its stages until it has ended. Throws its error.
async function changeCatalog(path, body, show) {
  let swap = await json("POST", path, body, { headers: { Prefer: "respond-async" } });
  while (swap.state === "running") {
    show(swap);
    await pause(1000);
    swap = await get(`/admin/swaps/${swap.id}`);
  }
  show(swap);
  if (swap.error) throw Object.assign(new Error(swap.error.message), swap.error);
}

function Swap({ models, checkpoints, onDone }) {
  const [model, setModel] = useState("");
  const [checkpoint, setCheckpoint] = useState("");
  const [keeps, setKeeps] = useState(false);
  const [swap, setSwap] = useState(null);
  const work = useWork();
  const chosen = { model: model || models[0], checkpoint: checkpoint || checkpoints[0] };
  const start = (path, body) => work.run(async () => {
    setSwap(null);
    await changeCatalog(path, body, setSwap);
    onDone();
  });
  const submit = (event) => {
    event.preventDefault();
    start("/admin/swap", { ...chosen, keep_settings: keeps });
  };
  return html`<form class="panel form" onSubmit=${submit}>
    <h2>${t("Swap a checkpoint")}</h2>
    <p class="dim small">${t("Running calls end with the old one. If the new one cannot be loaded, nothing changes.")}</p>
    <div class="row">
      <${Select} id="model" label=${t("Model")} value=${chosen.model} options=${models} onChange=${setModel} />
      <${Select} id="checkpoint" label=${t("Checkpoint")} value=${chosen.checkpoint} options=${checkpoints} onChange=${setCheckpoint} />
    </div>
    <label for="keeps"><input id="keeps" type="checkbox" checked=${keeps} onChange=${(event) => setKeeps(event.target.checked)} />${t("Keep the settings of the old one")}</label>
    <div class="actions">
      <button class="primary" disabled=${work.busy}>${t("Swap")}</button>
      <button type="button" disabled=${work.busy} onClick=${() => start("/admin/undo")}>${t("Undo the last swap")}</button>
      <button type="button" disabled=${work.busy} onClick=${() => start("/admin/reload")}>${t("Reload the catalog")}</button>
    </div>
    ${work.busy && html`<p role="status">${t("Working: {stage}", { stage: told(swap?.stage ?? "…") })}</p><progress aria-label=${t("Working: {stage}", { stage: "" })}></progress>`}
    <${ErrorNote} error=${work.error} />
    <${Change} change=${swap?.change} />
  </form>`;
}

// A row for each image worker of each server; one for a server that does not answer.
const workersOf = (servers) => servers.flatMap(({ state, ...server }) => (state?.image ?? [null]).map((worker) => ({ ...server, status: state?.status, worker })));

function Servers({ servers }) {
  const rows = workersOf(servers);
  const states = () => ({ ready: t("ready"), starting: t("starting"), draining: t("about to stop") });
  return html`<${Table} label=${t("Servers and workers")} rows=${rows} rowKey=${(row) => `${row.id} ${row.worker?.name}`} empty=${t("None.")} columns=${[
    { name: t("Server"), show: (row) => row.url ?? t("this one") },
    { name: t("State"), show: (row) => html`<span class=${row.status === "ready" ? "good" : "bad"}>${states()[row.status] ?? t("does not answer")}</span>` },
    { name: t("Catalog"), number: true, show: (row) => row.catalog_version ?? "–" },
    { name: t("Worker"), show: (row) => row.worker?.name ?? "–" },
    { name: t("Device"), show: (row) => row.worker?.device ?? row.worker?.problem ?? "–" },
    { name: t("Jobs"), number: true, show: (row) => row.worker?.jobs ?? "–" },
    { name: t("Weights"), number: true, show: (row) => (row.worker ? bytes(row.worker.weights_bytes) : "–") },
    { name: t("Checkpoints"), wrap: true, show: (row) => row.worker?.checkpoints.map((one) => one.name).join(", ") || "–" },
  ]} />`;
}

const words = () => ({ swap: t("Swap"), undo: t("Undo"), reload: t("Reload the catalog") });

export default function Models({ title }) {
  const checkpoints = useRoute("/admin/checkpoints");
  const changes = useRoute("/admin/swaps");
  const servers = useRoute("/admin/gateways");
  const reload = () => {
    servers.reload();
    checkpoints.reload();
    changes.reload();
  };
  const found = checkpoints.data?.data ?? [];
  const names = [...new Set(found.flatMap((one) => one.models))].sort();
  return html`<${Page} title=${title}>
    <${ErrorNote} error=${checkpoints.error ?? changes.error ?? servers.error} />
    ${checkpoints.data && html`<${Table} label=${t("Checkpoints")} rows=${found} rowKey=${(one) => one.name} empty=${t("None.")} columns=${[
      { name: t("Checkpoint"), show: (one) => one.name },
      { name: t("State"), show: (one) => html`<span class=${one.state === "failed" ? "bad" : "good"}>${told(one.state)}</span>` },
      { name: t("Models"), wrap: true, show: (one) => one.models.join(", ") || "–" },
      { name: t("On the disk"), number: true, show: (one) => bytes(one.bytes) },
      { name: t("Last used"), show: (one) => when(one.last_used) },
      { name: t("Details"), wrap: true, show: (one) => one.detail || "–" },
    ]} />`}
    ${names.length > 0 && html`<${Swap} models=${names} checkpoints=${found.map((one) => one.name)} onDone=${reload} />`}
    <h2>${t("Changes since the start")}</h2>
    ${changes.data && html`<${Table} label=${t("Changes since the start")} rows=${changes.data.data} rowKey=${(one) => one.id} empty=${t("Nothing was changed.")} columns=${[
      { name: t("Time"), show: (one) => when(one.created_at) },
      { name: t("Operator"), show: (one) => one.operator },
      { name: t("Action"), show: (one) => words()[one.action] ?? one.action },
      { name: t("Model"), show: (one) => one.model ?? "–" },
      { name: t("Checkpoint"), show: (one) => one.checkpoint ?? "–" },
      { name: t("State"), wrap: true, show: (one) => html`<span class=${one.state === "failed" ? "bad" : ""}>${one.error?.message ?? told(one.state)}</span>` },
    ]} />`}
    <h2>${t("Servers and workers")}</h2>
    ${servers.data && html`<${Servers} servers=${servers.data.data} />`}
  </${Page}>`;
}
