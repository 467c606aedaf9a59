// Models: what is served, what is on the disk, another checkpoint for a model while calls go on, and every server with
// its workers.
import { html } from "../core/html.js";
import { bytes, t, told, when } from "../core/i18n.js";
import { AddCheckpoint } from "../parts/add-checkpoint.js";
import { ErrorNote, Page, Table } from "../parts/basics.js";
import { useRoute } from "../parts/loading.js";
import { SwapForm } from "../parts/swap-form.js";

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
    { name: t("Checkpoints"), wrap: true, show: (row) => [...new Set(row.worker?.checkpoints.map((one) => one.name))].join(", ") || "–" },
  ]} />`;
}

const LOOKS = { loaded: "good", failed: "bad", missing: "bad", "not in the catalog": "dim" };

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
  return html`<${Page} title=${title}>
    <${ErrorNote} error=${checkpoints.error ?? changes.error ?? servers.error} />
    ${checkpoints.data && html`<${Table} label=${t("Checkpoints")} rows=${found} rowKey=${(one) => one.name} empty=${t("None.")} columns=${[
      { name: t("Checkpoint"), show: (one) => one.name },
      { name: t("State"), show: (one) => html`<span class=${LOOKS[one.state] ?? ""}>${told(one.state)}</span>` },
      { name: t("Models"), wrap: true, show: (one) => [...new Set(one.models)].join(", ") || "–" },
      { name: t("On the disk"), number: true, show: (one) => bytes(one.bytes) },
      { name: t("Its models were last used"), show: (one) => when(one.last_used) },
      { name: t("Details"), wrap: true, show: (one) => one.detail || "–" },
    ]} />`}
    ${found.some((one) => one.models.length) && html`<${SwapForm} found=${found} onDone=${reload} />`}
    ${checkpoints.data && html`<${AddCheckpoint} found=${found} onDone=${reload} />`}
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
