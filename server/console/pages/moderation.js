// Moderation: what the policy refused, what it would say to a text, and another policy without a restart.
import { json } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { t, when } from "../core/i18n.js";
import { ErrorNote, Field, Id, Page, Select, Table } from "../parts/basics.js";
import { useList, useRoute, useWork } from "../parts/loading.js";

const stages = () => ({ input: t("a prompt"), output: t("an answer") });

function Try() {
  const [text, setText] = useState("");
  const [stage, setStage] = useState("input");
  const [found, setFound] = useState(null);
  const work = useWork();
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => setFound(await json("POST", "/admin/moderation/test", { text, stage })));
  };
  return html`<form class="panel form" onSubmit=${submit}>
    <h2>${t("What would the policy say?")}</h2>
    <${Field} as="textarea" id="text" rows="3" required label=${t("Text")} value=${text} onInput=${(event) => setText(event.target.value)} />
    <${Select} id="stage" label=${t("As")} value=${stage} onChange=${setStage} options=${Object.entries(stages())} />
    <div class="actions"><button disabled=${work.busy}>${t("Try")}</button></div>
    <${ErrorNote} error=${work.error} />
    ${found && html`<div role="status">${found.flagged
      ? html`<p class="bad">${t("It would be refused.")}</p>${found.findings.map((one, index) => html`<p key=${index} class="small mono">${one.policy} · ${one.category} · ${one.evidence}</p>`)}`
      : html`<p class="good">${t("It would pass.")}</p>`}</div>`}
  </form>`;
}

function Policy() {
  const shown = useRoute("/admin/moderation");
  const [reloaded, setReloaded] = useState(null);
  const work = useWork();
  const reload = () => work.run(async () => setReloaded(await json("POST", "/admin/moderation/reload")));
  const policy = reloaded ?? shown.data;
  return html`<section class="panel form">
    <h2>${t("The policy")}</h2>
    ${policy && !policy.path && html`<p>${t("Write a policy file, name it in DARKROOM_MODERATION and start the server again. The guide to moderation says how.")}</p>`}
    ${policy && html`<p class="small mono">${policy.path ?? t("There is none: nothing is moderated.")}</p>
      <p role="status">${t("Rules: {names}", { names: policy.rules.join(", ") || "–" })}<br />${t("Classifiers: {names}", { names: policy.classifiers.join(", ") || "–" })}</p>`}
    <p class="dim small">${t("Reads the policy's file again. If it is invalid, nothing changes.")}</p>
    <div class="actions"><button type="button" disabled=${work.busy || !policy?.path} onClick=${reload}>${t("Reload the policy")}</button>
      ${reloaded && html`<span role="status" class="good">${t("Reloaded.")}</span>`}</div>
    <${ErrorNote} error=${work.error ?? shown.error} />
  </section>`;
}

export default function Moderation({ title }) {
  const refusals = useList("/admin/refusals");
  return html`<${Page} title=${title} actions=${html`<button type="button" onClick=${refusals.reload}>${t("Refresh")}</button>`}>
    <div class="halves"><${Try} /><${Policy} /></div>
    <h2>${t("Refusals")}</h2>
    <${ErrorNote} error=${refusals.error} />
    ${refusals.rows && html`<${Table} label=${t("Refusals")} rows=${refusals.rows} rowKey=${(row) => row.id} empty=${t("Nothing was refused.")} columns=${[
      { name: t("Time"), show: (row) => when(row.created_at) },
      { name: t("Key"), long: true, show: (row) => row.key_name ?? row.key_id },
      { name: t("Model"), show: (row) => row.model ?? row.endpoint },
      { name: t("As"), show: (row) => stages()[row.stage] ?? row.stage },
      { name: t("Policy"), show: (row) => `${row.policy} · ${row.category}` },
      { name: t("Evidence"), wrap: true, show: (row) => row.evidence ?? "–" },
      { name: t("Call"), show: (row) => html`<${Id} id=${row.call_id} />` },
    ]} />`}
    ${refusals.more && html`<div class="actions"><button type="button" onClick=${refusals.loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
