// Audit: who changed what.
import { html, useState } from "../core/html.js";
import { stringify } from "../core/json.js";
import { t, when } from "../core/i18n.js";
import { ErrorNote, Field, Page, Table } from "../parts/basics.js";
import { useList } from "../parts/loading.js";
import { csvLink, Period } from "../parts/usage.js";

function shown(name, value) {
  if (Array.isArray(value)) return value.map((each) => shown(name, each)).join(", ");
  if (typeof value === "number" && name.endsWith("_at")) return when(value);
  return value == null ? "–" : typeof value === "object" ? stringify(value) : String(value);
}

// What a change was, without the fields that it left empty. A changed field has its values before and after.
function summary({ action, details }) {
  const filled = Object.entries(details ?? {}).filter(([, value]) => value != null && value !== "" && value !== false && value.length !== 0);
  const isChange = (value) => action === "key.change" && Array.isArray(value);
  return filled.map(([name, value]) => `${name}: ${isChange(value) ? value.map((each) => shown(name, each)).join(" → ") : shown(name, value)}`).join("; ");
}

export default function Audit({ title }) {
  const [filter, setFilter] = useState({ operator: "", action: "", from: "", to: "" });
  const entries = useList("/admin/audit", filter);
  const set = (name) => (event) => setFilter({ ...filter, [name]: event.target.value.trim() });
  return html`<${Page} title=${title} actions=${csvLink("/admin/audit", filter)}>
    <${ErrorNote} error=${entries.error} />
    <div class="row">
      <${Field} id="operator" label=${t("Operator")} value=${filter.operator} onChange=${set("operator")} />
      <${Field} id="action" label=${t("Action")} value=${filter.action} onChange=${set("action")} placeholder="key.create" />
    </div>
    <${Period} value=${filter} onChange=${setFilter} />
    ${entries.rows && html`<${Table} label=${title} rows=${entries.rows} rowKey=${(row) => row.id} empty=${t("Nothing was changed.")} columns=${[
      { name: t("Time"), show: (row) => when(row.created_at) },
      { name: t("Operator"), show: (row) => row.operator },
      { name: t("Action"), show: (row) => row.action },
      { name: t("On what"), show: (row) => html`<code>${row.target ?? "–"}</code>` },
      { name: t("Details"), wrap: true, show: (row) => html`<code>${summary(row)}</code>` },
    ]} />`}
    ${entries.more && html`<div class="actions"><button type="button" onClick=${entries.loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
