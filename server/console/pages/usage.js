// My usage: what the key may spend, what it spent, and its latest calls, failed ones too.
import { query } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { count, money, t, when } from "../core/i18n.js";
import { ErrorNote, Page, Tile } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { useList, useRoute } from "../parts/loading.js";
import { CallsTable, chartRows, csvLink, lastDays, Period, UsageTable } from "../parts/usage.js";

function Limits({ me }) {
  return html`<div class="tiles">
    <${Tile} label=${t("Available")} value=${me.available == null ? t("unlimited") : money(me.available)} note=${me.budget != null && t("of {budget}", { budget: money(me.budget) })} />
    <${Tile} label=${t("Spent")} value=${money(me.spent)} note=${t("{held} held by running calls", { held: money(me.held) })} />
    <${Tile} label=${t("Spent this month")} value=${money(me.spent_this_month)} note=${me.monthly_budget != null && t("of {budget}", { budget: money(me.monthly_budget) })} />
    ${me.team && html`<${Tile} label=${t("Team")} value=${me.team} note=${t("Its keys share a budget a month.")} />`}
    <${Tile} label=${t("Running calls")} value=${count(me.running)} note=${t("{number} at most", { number: count(me.max_running) })} />
    <${Tile} label=${t("Groups")} value=${count(me.groups.length)} note=${me.groups.join(", ")} />
    <${Tile} label=${t("Expires")} value=${me.expires_at ? when(me.expires_at) : t("never")} />
  </div>`;
}

export default function Usage({ title }) {
  const [period, setPeriod] = useState(lastDays(30));
  const values = { ...period, by: "day,model" };
  const me = useRoute("/v1/darkroom/me");
  const usage = useRoute(query("/v1/darkroom/usage", values));
  const calls = useList("/v1/darkroom/calls");
  const rows = usage.data?.data ?? [];
  return html`<${Page} title=${title} actions=${csvLink("/v1/darkroom/usage", values)}>
    <${ErrorNote} error=${me.error ?? usage.error ?? calls.error} />
    ${me.data && html`<${Limits} me=${me.data} />`}
    <${Period} value=${period} onChange=${setPeriod} />
    ${rows.length > 0 && html`<${Chart} label=${t("Spent by day and model")} rows=${chartRows(rows, "model")} unit="CNY" />`}
    ${usage.data && html`<${UsageTable} rows=${rows} total=${usage.data.total} by=${["day", "model"]} />`}
    <h2>${t("Latest calls")}</h2>
    ${calls.rows && html`<${CallsTable} rows=${calls.rows} route="/v1/darkroom/calls" />`}
    ${calls.more && html`<div class="actions"><button type="button" onClick=${calls.loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
