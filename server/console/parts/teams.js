// Teams: keys that share a monthly budget.
import { json } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { count, money, t } from "../core/i18n.js";
import { Dialog, ErrorNote, Field, Table } from "./basics.js";
import { useWork } from "./loading.js";
import { Spent } from "./spent.js";

function TeamForm({ before, onSubmit, onClose }) {
  const [form, setForm] = useState({ name: before.name ?? "", budget: before.monthly_budget ?? "" });
  const work = useWork();
  const label = before.id ? t("Change {name}", before) : t("New team");
  const submit = (event) => {
    event.preventDefault();
    work.run(() => onSubmit({ name: form.name.trim(), monthly_budget: form.budget.trim() || null }));
  };
  const field = (name, text, rest) => html`<${Field} id=${`team-${name}`} label=${text} value=${form[name]} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} ...${rest} />`;
  return html`<${Dialog} label=${label} onClose=${onClose}>
    <form class="form" onSubmit=${submit}>
      <h2>${label}</h2>
      ${field("name", t("Name"), { required: true })}
      ${field("budget", t("Budget a month in CNY"), { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,4})?", placeholder: t("unlimited") })}
      <div class="actions"><button class="primary" disabled=${work.busy}>${before.id ? t("Save") : t("Create")}</button><button type="button" onClick=${onClose}>${t("Close")}</button></div>
      <${ErrorNote} error=${work.error} />
    </form>
  </${Dialog}>`;
}

export function Teams({ teams, onChanged }) {
  const [open, setOpen] = useState(null); // a team, or {} for a new one
  const save = async (body) => {
    await (open.id ? json("PATCH", `/admin/teams/${open.id}`, body) : json("POST", "/admin/teams", body));
    setOpen(null);
    onChanged();
  };
  return html`<section class="form" aria-label=${t("Teams")}>
    <header class="actions"><h2>${t("Teams")}</h2><button type="button" onClick=${() => setOpen({})}>${t("New team")}</button></header>
    <${Table} label=${t("Teams")} rows=${teams} rowKey=${(one) => one.id} empty=${t("No team yet. The keys of a team share a budget a month.")} columns=${[
      { name: t("Name"), long: true, show: (one) => html`<button type="button" class="plain" onClick=${() => setOpen(one)}>${one.name}</button>` },
      { name: t("Keys"), number: true, show: (one) => count(one.keys) },
      { name: t("This month"), show: (one) => html`<${Spent} one=${one} of="monthly_budget" spent="spent_this_month" />` },
      { name: t("Available"), number: true, show: (one) => (one.available == null ? t("unlimited") : money(one.available)) },
    ]} />
    ${open && html`<${TeamForm} before=${open} onSubmit=${save} onClose=${() => setOpen(null)} />`}
  </section>`;
}
