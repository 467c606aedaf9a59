// Keys: who may call, for how much, and until when.
import { call, json } from "../core/api.js";
import { BASE } from "../core/base.js";
import { html, useState } from "../core/html.js";
import { t, when } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { Copy, Dialog, ErrorNote, Field, Id, Page, Table } from "../parts/basics.js";
import { formOf, KeyForm } from "../parts/key-form.js";
import { useList, useRoute, useWork } from "../parts/loading.js";
import { Spent } from "../parts/spent.js";
import { Teams } from "../parts/teams.js";
import { models } from "../state/models.js";

const DAY_S = 86_400;

// The only time that a secret is seen.
function Secret({ made, onClose }) {
  const curl = () => `curl ${location.origin}${BASE}/v1/models -H "Authorization: Bearer ${made.secret}"`;
  return html`<div class="secret" role="status">
    <p>${t("The secret of {name}. It is shown now and never again.", { name: made.name })}</p>
    <code id="secret">${made.secret}</code>
    <div class="actions"><${Copy} text=${() => made.secret}>${t("Copy")}</${Copy}><${Copy} text=${curl}>${t("Copy as curl")}</${Copy}>
      <button type="button" onClick=${onClose}>${t("Done")}</button></div>
  </div>`;
}

function Change({ one, groups, teams, onClose, onChanged }) {
  const work = useWork();
  const [sure, setSure] = useState(false);
  const save = async (changes) => {
    await json("PATCH", `/admin/keys/${one.id}`, changes);
    onChanged(null);
  };
  const rotate = () => work.run(async () => onChanged(await json("POST", `/admin/keys/${one.id}/rotate`, { overlap_s: DAY_S })));
  const revoke = () => (sure ? work.run(async () => {
    await call("DELETE", `/admin/keys/${one.id}`);
    onChanged(null);
  }) : setSure(true));
  return html`<${Dialog} label=${t("Change {name}", one)} onClose=${onClose}>
    <div class="form">
      <h2>${t("Change {name}", one)}</h2>
      <p class="small mono dim">${one.id}</p>
      <${KeyForm} before=${formOf(one)} groups=${groups} teams=${teams} action=${t("Save")} onSubmit=${save} />
      <div class="actions">
        <button type="button" disabled=${work.busy} onClick=${rotate}>${t("New secret; the old one works for a day")}</button>
        <button type="button" class="bad" disabled=${work.busy} onClick=${revoke}>${sure ? t("Revoke it: press again") : t("Revoke for ever")}</button>
      </div>
      <${ErrorNote} error=${work.error} />
      <form method="dialog"><button>${t("Close")}</button></form>
    </div>
  </${Dialog}>`;
}

export default function Keys({ title }) {
  const list = useList("/admin/keys");
  const teams = useRoute("/admin/teams");
  const teamNames = (teams.data?.data ?? []).map((team) => team.name);
  const catalog = useStore(models); // empty for an operator without a key
  const [words, setWords] = useState("");
  const [made, setMade] = useState(null);
  const [open, setOpen] = useState(null); // a key, or "new"
  const groups = [...new Set([...catalog.map((model) => model.group), ...(list.rows ?? []).flatMap((one) => one.groups)])].sort();
  const found = (list.rows ?? []).filter((one) => `${one.name} ${one.id} ${one.team ?? ""} ${one.note ?? ""}`.toLowerCase().includes(words.toLowerCase()));
  const changed = (secret) => {
    setOpen(null);
    if (secret) setMade(secret);
    list.reload();
    teams.reload();
  };
  const create = async (body) => changed(await json("POST", "/admin/keys", body));
  const STATES = { valid: t("valid"), expired: t("expired"), revoked: t("revoked") };
  return html`<${Page} title=${title} actions=${html`<button type="button" class="primary" onClick=${() => setOpen("new")}>${t("New key")}</button>`}>
    <${ErrorNote} error=${list.error ?? teams.error} />
    ${made && html`<${Secret} made=${made} onClose=${() => setMade(null)} />`}
    <${Field} id="words" type="search" label=${t("Search by name, id, team or note")} value=${words} onInput=${(event) => setWords(event.target.value)} />
    ${list.rows && html`<${Table} label=${title} rows=${found} rowKey=${(one) => one.id} empty=${t("No key here.")} columns=${[
      { name: t("Name"), long: true, show: (one) => html`<button type="button" class="plain" onClick=${() => setOpen(one)}>${one.name}</button>${one.person && html`<br /><small class="dim">${one.person}</small>`}` },
      { name: t("State"), show: (one) => html`<span class=${one.state === "valid" ? "good" : "bad"}>${STATES[one.state] ?? one.state}</span>` },
      { name: t("Spent"), show: (one) => html`<${Spent} one=${one} />` },
      { name: t("This month"), show: (one) => html`<${Spent} one=${one} of="monthly_budget" spent="spent_this_month" />` },
      { name: t("Last used"), show: (one) => when(one.last_used_at) },
      ...(teamNames.length ? [{ name: t("Team"), show: (one) => one.team ?? "–" }] : []),
      { name: t("Groups"), wrap: true, show: (one) => one.groups.join(", ") },
      { name: t("Id"), show: (one) => html`<${Id} id=${one.id} /><br /><small class="dim">${t("secret …{tail}", one)}</small>` },
    ]} />`}
    ${list.more && html`<div class="actions"><button type="button" onClick=${list.loadMore}>${t("Show more")}</button></div>`}
    ${teams.data && html`<${Teams} teams=${teams.data.data} onChanged=${() => changed(null)} />`}
    ${open === "new" && html`<${Dialog} label=${t("New key")} onClose=${() => setOpen(null)}>
      <div class="form"><h2>${t("New key")}</h2><${KeyForm} before=${formOf(null)} groups=${groups} teams=${teamNames} action=${t("Create")} onSubmit=${create} /></div>
    </${Dialog}>`}
    ${open && open !== "new" && html`<${Change} one=${open} groups=${groups} teams=${teamNames} onClose=${() => setOpen(null)} onChanged=${changed} />`}
  </${Page}>`;
}
