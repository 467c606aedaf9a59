// The fields of a key, for a new one and for a change.
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { ErrorNote, Field, Select } from "./basics.js";
import { useWork } from "./loading.js";

const NUMBERS = ["max_running", "per_minute"];
const TEXTS = ["team", "budget", "monthly_budget"];
const DAY_S = 86_400;

export const formOf = (key) => ({
  name: key?.name ?? "",
  team: key?.team ?? "",
  groups: (key?.groups ?? []).join(", "),
  budget: key?.budget ?? "",
  monthly_budget: key?.monthly_budget ?? "",
  max_running: key?.max_running ?? "",
  per_minute: key?.per_minute ?? "",
  expires: key?.expires_at ? new Date(key.expires_at * 1000).toISOString().slice(0, 10) : "",
  note: key?.note ?? "",
});

// The fields that differ from those of before, as the routes take them: null clears a limit.
export function changesOf(form, before) {
  const changed = Object.keys(form).filter((name) => String(form[name]) !== String(before[name]));
  const body = {};
  for (const name of changed) {
    const value = String(form[name]).trim();
    if (name === "groups") body.groups = value.split(",").map((group) => group.trim()).filter(Boolean);
    else if (name === "expires") body.expires_at = value ? Date.parse(value) / 1000 + DAY_S : null; // the day's end
    else if (NUMBERS.includes(name)) body[name] = value ? Number(value) : null;
    else if (TEXTS.includes(name)) body[name] = value || null;
    else body[name] = value;
  }
  return body;
}

export function KeyForm({ before, action, onSubmit, groups, teams }) {
  const [form, setForm] = useState(before);
  const work = useWork();
  const field = (name, label, rest = {}) => html`<${Field} id=${name} label=${label} value=${form[name]} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} ...${rest} />`;
  const submit = (event) => {
    event.preventDefault();
    work.run(() => onSubmit(changesOf(form, before)));
  };
  const amount = { inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,4})?", placeholder: t("unlimited") };
  return html`<form class="form" onSubmit=${submit}>
    <div class="row">${field("name", t("Name"), { required: true })}${field("note", t("Note"))}</div>
    ${field("groups", t("Groups, with commas"), { hint: groups.length ? t("Models have the groups {groups}.", { groups: groups.join(", ") }) : undefined, placeholder: t("all") })}
    ${teams.length > 0 && html`<${Select} id="team" label=${t("Team")} value=${form.team} onChange=${(team) => setForm({ ...form, team })} options=${[["", t("none")], ...teams]} />`}
    <div class="row">${field("budget", t("Budget in CNY"), amount)}${field("monthly_budget", t("Budget a month in CNY"), amount)}</div>
    <div class="row">
      ${field("max_running", t("Calls at once"), { type: "number", min: 1, placeholder: t("the default") })}
      ${field("per_minute", t("Calls a minute"), { type: "number", min: 1, placeholder: t("unlimited") })}
      ${field("expires", t("Valid until"), { type: "date" })}
    </div>
    <div class="actions"><button class="primary" disabled=${work.busy}>${action}</button></div>
    <${ErrorNote} error=${work.error} />
  </form>`;
}
