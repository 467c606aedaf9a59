// What was used, as a chart and as a table; and calls. For a key's own page and for operators.
import { query } from "../core/api.js";
import { BASE } from "../core/base.js";
import { html, useState } from "../core/html.js";
import { count, duration, money, t, when } from "../core/i18n.js";
import { Dialog, ErrorNote, Field, Table } from "./basics.js";
import { useRoute } from "./loading.js";

const DAY_MS = 86_400_000;
const dayOf = (ms) => new Date(ms).toISOString().slice(0, 10);
export const lastDays = (number) => ({ from: dayOf(Date.now() - (number - 1) * DAY_MS), to: dayOf(Date.now()) });

// The month before this one, as both its days.
export function lastMonth(now = new Date()) {
  const first = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - 1, 1);
  return { from: dayOf(first), to: dayOf(Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 0)) };
}

export function Period({ value, onChange }) {
  const set = (name) => (event) => onChange({ ...value, [name]: event.target.value });
  return html`<div class="row no-print">
    <${Field} id="from" type="date" label=${t("From")} value=${value.from} onInput=${set("from")} />
    <${Field} id="to" type="date" label=${t("To")} value=${value.to} onInput=${set("to")} />
    <button type="button" onClick=${() => onChange(lastDays(30))}>${t("30 days")}</button>
    <button type="button" onClick=${() => onChange(lastMonth())}>${t("Last month")}</button>
  </div>`;
}

export const chartRows = (rows, name) => rows.map((row) => ({ day: row.day, name: row[name] ?? "–", value: Number(row.amount) }));

export function UsageTable({ rows, by, total }) {
  const names = { day: t("Day"), month: t("Month"), model: t("Model"), key: t("Key"), team: t("Team") };
  const shown = (row, each) => (each === "key" || each === "team" ? row[`${each}_name`] || row[`${each}_id`] : row[each]) || "–";
  const all = total ? [...rows, { ...total, isTotal: true }] : rows;
  return html`<${Table} label=${t("Usage")} rows=${rows.length ? all : rows} rowKey=${(row) => (row.isTotal ? "total" : by.map((each) => shown(row, each)).join("|"))} empty=${t("Nothing was used in this time.")}
    columns=${[
      ...by.map((each, index) => ({ name: names[each], long: each === "key" || each === "team", show: (row) => (row.isTotal ? (index ? "" : html`<strong>${t("Total")}</strong>`) : shown(row, each)) })),
      { name: t("Calls"), number: true, show: (row) => count(row.calls) },
      { name: t("Images"), number: true, show: (row) => count(row.images) },
      { name: t("Amount"), number: true, show: (row) => money(row.amount) },
      { name: t("Chats"), number: true, show: (row) => count(row.chats) },
      { name: t("Tokens read"), number: true, show: (row) => count(row.prompt_tokens) },
      { name: t("Tokens written"), number: true, show: (row) => count(row.completion_tokens) },
    ]} />`;
}

// All that is known of a call, with its prompt and parameters if the server keeps them.
function CallDetails({ path, onClose }) {
  const { data, error } = useRoute(path);
  const facts = Object.entries(data ?? {}).filter(([, value]) => value != null && value !== "").map(([name, value]) => {
    if (name.endsWith("_at")) return [name, new Date(value * 1000).toISOString()];
    return [name, typeof value === "object" ? JSON.stringify(value, (_, each) => (typeof each === "bigint" ? String(each) : each), 1) : value];
  });
  return html`<${Dialog} label=${t("Call")} onClose=${onClose}>
    <div class="form">
      <h2>${t("Call")}</h2>
      <${ErrorNote} error=${error} />
      <pre class="mono" tabindex="0">${facts.map(([name, value]) => `${name}: ${value}`).join("\n")}</pre>
      <form method="dialog"><button>${t("Close")}</button></form>
    </div>
  </${Dialog}>`;
}

// `route` has the calls: of one key, or of all.
export function CallsTable({ rows, route, withKey }) {
  const [open, setOpen] = useState(null);
  const good = (row) => row.status != null && row.status < 400;
  return html`<${Table} label=${t("Calls")} rows=${rows} rowKey=${(row) => row.id} empty=${t("No calls here.")} columns=${[
    { name: t("Time"), show: (row) => when(row.created_at) },
    ...(withKey ? [{ name: t("Key"), long: true, show: (row) => row.key_name ?? row.key_id ?? "–" }] : []),
    { name: t("Model"), show: (row) => row.model ?? row.endpoint },
    { name: t("Status"), wrap: true, show: (row) => html`<span class=${good(row) ? "good" : "bad"}>${row.status ?? "–"}${row.code ? ` ${row.code}` : ""}</span>${row.message && html`<br /><small>${row.param && html`<code>${row.param}</code> `}${row.message}</small>`}` },
    { name: t("Queued"), number: true, show: (row) => duration(row.queue_s) },
    { name: t("Ran"), number: true, show: (row) => duration(row.run_s) },
    { name: t("Price"), number: true, show: (row) => money(row.price) },
    { name: t("Request"), show: (row) => html`<button type="button" class="plain mono" title=${row.id} onClick=${() => setOpen(row.id)}>…${row.id.slice(-8)}</button>` },
  ]} />
  ${open && html`<${CallDetails} path=${`${route}/${open}`} onClose=${() => setOpen(null)} />`}`;
}

export const csvLink = (path, values) => html`<a class="button" href=${BASE + query(path, { ...values, format: "csv" })} download>${t("Download CSV")}</a>`;
