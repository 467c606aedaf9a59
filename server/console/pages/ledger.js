// Ledger: who spent what and when, as a chart, a table, a CSV and an invoice.
import { json, query } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { money, t, when } from "../core/i18n.js";
import { ErrorNote, Id, Page, Select, Table } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { useList, useRoute, useWork } from "../parts/loading.js";
import { chartRows, csvLink, lastDays, Period, UsageTable } from "../parts/usage.js";

const GROUPINGS = { "key,model,day": ["day", "key", "model"], "key,month": ["month", "key"], "model,month": ["month", "model"], "key,model,month": ["month", "key", "model"], "team,month": ["month", "team"], "team,key,month": ["month", "team", "key"] };

function Check() {
  const work = useWork();
  const [found, setFound] = useState(null);
  const check = () => work.run(async () => setFound(await json("POST", "/admin/ledger/check")));
  return html`<div class="actions">
    <button type="button" disabled=${work.busy} onClick=${check}>${t("Check the books")}</button>
    ${found && html`<span role="status" class=${found.clean ? "good" : "bad"}>${found.clean ? t("Charges, holds and files agree.") : found.problems.join("; ")}</span>`}
    <${ErrorNote} error=${work.error} />
  </div>`;
}

// What one key used in the chosen time, to print.
function Invoice({ rows, name, period }) {
  const total = rows.reduce((sum, row) => sum + Number(row.amount), 0);
  return html`<section class="panel form" aria-label=${t("Invoice")}>
    <h2>${t("Invoice for {name}", { name })}</h2>
    <p class="dim">${t("{from} to {to}, UTC", period)}</p>
    <${Table} label=${t("Invoice")} rows=${rows} rowKey=${(row) => row.model} empty=${t("Nothing was used in this time.")} columns=${[
      { name: t("Model"), show: (row) => row.model },
      { name: t("Calls"), number: true, show: (row) => row.calls },
      { name: t("Images"), number: true, show: (row) => row.images },
      { name: t("Amount"), number: true, show: (row) => money(row.amount) },
    ]} />
    <p><strong>${t("Total")}: ${money(total)}</strong></p>
    <div class="actions"><button type="button" onClick=${() => print()}>${t("Print")}</button></div>
  </section>`;
}

export default function Ledger({ title }) {
  const [period, setPeriod] = useState(lastDays(30));
  const [by, setBy] = useState("key,model,day");
  const [key, setKey] = useState("");
  const [team, setTeam] = useState("");
  const keys = useRoute("/admin/keys?limit=100");
  const teams = useRoute("/admin/teams");
  const teamNames = (teams.data?.data ?? []).map((one) => [one.id, one.name]);
  const values = { ...period, by, key, team };
  const usage = useRoute(query("/admin/usage", values));
  const byDay = useRoute(query("/admin/usage", { ...period, by: "key,day", key, team }));
  const invoice = useRoute(key ? query("/admin/usage", { ...period, by: "model", key, team }) : null);
  const entries = useList("/admin/ledger", { ...period, key, team });
  const names = keys.data?.data ?? [];
  const chosen = names.find((one) => one.id === key);
  const days = byDay.data?.data ?? [];
  return html`<${Page} title=${title} actions=${html`${csvLink("/admin/usage", values)}<${Check} />`}>
    <${ErrorNote} error=${usage.error ?? keys.error ?? teams.error ?? entries.error} />
    <${Period} value=${period} onChange=${setPeriod} />
    <div class="row no-print">
      <${Select} id="by" label=${t("By")} value=${by} onChange=${setBy} options=${[["key,model,day", t("key, model and day")], ["key,month", t("key and month")], ["model,month", t("model and month")], ["key,model,month", t("key, model and month")], ["team,month", t("team and month")], ["team,key,month", t("team, key and month")]]} />
      <${Select} id="key" label=${t("Key")} value=${key} onChange=${setKey} options=${[["", t("all")], ...names.map((one) => [one.id, one.name])]} />
      ${teamNames.length > 0 && html`<${Select} id="team" label=${t("Team")} value=${team} onChange=${setTeam} options=${[["", t("all")], ...teamNames]} />`}
    </div>
    ${days.length > 0 && html`<${Chart} label=${t("Spent by day and key")} rows=${chartRows(days, "key_name")} unit="CNY" />`}
    ${usage.data && html`<${UsageTable} rows=${usage.data.data} total=${usage.data.total} by=${GROUPINGS[by]} />`}
    ${chosen && invoice.data && html`<${Invoice} rows=${invoice.data.data} name=${chosen.name} period=${period} />`}
    <h2>${t("Charges")}</h2>
    ${entries.rows && html`<${Table} label=${t("Charges")} rows=${entries.rows} rowKey=${(row) => row.id} empty=${t("Nothing was used in this time.")} columns=${[
      { name: t("Time"), show: (row) => when(row.created_at) },
      { name: t("Key"), show: (row) => row.key_name },
      ...(teamNames.length ? [{ name: t("Team"), show: (row) => row.team_name || "–" }] : []),
      { name: t("Model"), show: (row) => row.model },
      { name: t("Amount"), number: true, show: (row) => money(row.amount) },
      { name: t("Call"), show: (row) => html`<${Id} id=${row.call_id} />` },
    ]} />`}
    ${entries.more && html`<div class="actions"><button type="button" onClick=${entries.loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
