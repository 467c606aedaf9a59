// Calls: every call of every key, refused and failed ones too.
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { useList, useRoute } from "../parts/loading.js";
import { CallsTable, Period } from "../parts/usage.js";

export default function Calls({ title }) {
  const [filter, setFilter] = useState({ status: "", key: "", code: "", from: "", to: "" });
  const keys = useRoute("/admin/keys?limit=100");
  const calls = useList("/admin/calls", filter);
  const set = (values) => setFilter({ ...filter, ...values });
  return html`<${Page} title=${title} actions=${html`<button type="button" onClick=${calls.reload}>${t("Refresh")}</button>`}>
    <${ErrorNote} error=${calls.error ?? keys.error} />
    <div class="row">
      <${Select} id="status" label=${t("Status")} value=${filter.status} onChange=${(status) => set({ status })}
        options=${[["", t("all")], ["succeeded", t("succeeded")], ["failed", t("failed")], ["refused", t("refused")]]} />
      <${Select} id="key" label=${t("Key")} value=${filter.key} onChange=${(key) => set({ key })} options=${[["", t("all")], ...(keys.data?.data ?? []).map((one) => [one.id, one.name])]} />
      <${Field} id="code" label=${t("Error code")} value=${filter.code} onChange=${(event) => set({ code: event.target.value.trim() })} placeholder="insufficient_quota" />
    </div>
    <${Period} value=${filter} onChange=${set} />
    ${calls.rows && html`<${CallsTable} rows=${calls.rows} route="/admin/calls" withKey=${true} />`}
    ${calls.more && html`<div class="actions"><button type="button" onClick=${calls.loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
