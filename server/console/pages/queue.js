// Queue: what runs and waits on this server now, told by the server as it changes.
import { call, get, json } from "../core/api.js";
import { BASE } from "../core/base.js";
import { html, useEffect, useState } from "../core/html.js";
import { bytes, count, duration, t, told, when } from "../core/i18n.js";
import { ErrorNote, Id, Page, Table, Tile } from "../parts/basics.js";
import { useRoute, useWork } from "../parts/loading.js";

function useSnapshot() {
  const [state, setState] = useState({ jobs: null, workers: [], live: false });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const source = new EventSource(`${BASE}/admin/events`); // it connects again by itself, unless it was refused
    source.addEventListener("queue.snapshot", (event) => setState({ ...JSON.parse(event.data), live: true }));
    source.onerror = () => {
      setState((before) => ({ ...before, live: false }));
      const again = () => setTurn((number) => number + 1);
      if (source.readyState === EventSource.CLOSED) get("/admin/status").then(again, () => setTimeout(again, 3000));
    };
    return () => source.close();
  }, [turn]);
  return state;
}

function stateOf(job) {
  if (job.position) return t("Waiting, place {position}", job);
  if (job.kind === "grid") return t("{step} of {steps} images", job);
  if (job.step != null) return t("Step {step} of {steps}", job);
  if (job.tokens) return t("{tokens} tokens written", job);
  return job.state === "running" ? t("Running") : t("Queued");
}

function workerState(worker) {
  const time = duration(worker.wake_s);
  if (worker.sleep === "asleep") return t("asleep, back in about {time}", { time });
  if (worker.sleep === "waking") return t("waking, back in about {time}", { time });
  if (worker.ready) return html`<span class="good">${t("ready")}</span>${worker.problem && html` <span class="bad">${worker.problem}</span>`}`;
  return html`<span class="bad">${worker.problem ?? t("starting")}</span>`;
}

// Of a GPU, what all programs use of it; of a CPU, what the worker does.
function memoryOf({ memory }) {
  if (!memory) return "–";
  if (!memory.gpu_total_bytes) return bytes(memory.host_bytes);
  const told = t("{used} of {total}", { used: bytes(memory.gpu_used_bytes), total: bytes(memory.gpu_total_bytes) });
  return html`<span>${told}</span><meter aria-label=${told} max=${memory.gpu_total_bytes} value=${memory.gpu_used_bytes}></meter>`;
}

export default function Queue({ title }) {
  const { jobs, workers, live } = useSnapshot();
  const status = useRoute("/admin/status");
  const work = useWork();
  const cancel = (id) => work.run(() => call("DELETE", `/admin/jobs/${id}`));
  const change = (path, worker) => work.run(() => json("POST", path, { workers: [worker.name] }));
  const { data } = status;
  return html`<${Page} title=${title} actions=${html`<span class="badge" role="status">${live ? t("live") : t("connecting")}</span>`}>
    <${ErrorNote} error=${work.error ?? status.error} />
    <div class="tiles">
      <${Tile} label=${t("Running")} value=${count(jobs?.filter((job) => job.state === "running").length)} />
      <${Tile} label=${t("Waiting")} value=${count(jobs?.filter((job) => job.state !== "running").length)} />
      ${data && html`<${Tile} label=${t("Version")} value=${data.version} note=${t("since {time}", { time: when(data.started_at) })} />
        <${Tile} label=${t("Free disk")} value=${bytes(data.disk.free_bytes)} note=${t("of {total}", { total: bytes(data.disk.total_bytes) })} />`}
    </div>
    ${data?.storage_problem && html`<p class="error" role="alert">${data.storage_problem}</p>`}
    ${jobs && html`<${Table} label=${title} rows=${jobs} rowKey=${(job) => job.id} empty=${t("Nothing runs or waits.")} columns=${[
      { name: t("State"), show: stateOf },
      { name: t("Kind"), show: (job) => ({ image: t("Image"), response: t("Response"), chat: t("Chat"), grid: t("Comparison") })[job.kind] ?? job.kind },
      { name: t("Tier"), show: (job) => told(job.service_tier) },
      { name: t("Key"), long: true, show: (job) => job.key_name },
      { name: t("Model"), show: (job) => job.model ?? "–" },
      { name: t("Size"), show: (job) => job.size ?? "–" },
      { name: t("Since"), show: (job) => when(job.created_at) },
      { name: t("Left"), number: true, show: (job) => duration(job.estimated_s) },
      { name: "", show: (job) => html`<button type="button" class="plain" aria-label=${t("Cancel {id}", job)} onClick=${() => cancel(job.id)}>${t("Cancel")}</button>` },
      { name: t("Id"), show: (job) => html`<${Id} id=${job.id} />` },
    ]} />`}
    <h2>${t("Workers")}</h2>
    <${Table} label=${t("Workers")} rows=${workers} rowKey=${(worker) => worker.name} empty=${t("None.")} columns=${[
      { name: t("Name"), show: (worker) => worker.name },
      { name: t("State"), show: workerState },
      { name: t("Device"), show: (worker) => told(worker.device ?? "–") },
      { name: t("Memory"), show: memoryOf },
      { name: t("Jobs"), number: true, show: (worker) => count(worker.jobs) },
      { name: t("Restarts"), number: true, show: (worker) => count(worker.restarts) },
      { name: "", show: (worker) => worker.can_sleep && (worker.sleep === "asleep"
        ? html`<button type="button" class="plain" aria-label=${t("Wake {name}", worker)} onClick=${() => change("/admin/wake", worker)}>${t("Wake")}</button>`
        : html`<button type="button" class="plain" aria-label=${t("Give the device back: {name}", worker)} onClick=${() => change("/admin/sleep", worker)}>${t("Give the device back")}</button>`) },
      { name: "PID", number: true, show: (worker) => worker.pid ?? "–" },
    ]} />
  </${Page}>`;
}
