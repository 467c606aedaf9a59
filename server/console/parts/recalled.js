// What a recall has put into a form beside its controls, and what it could not bring back.
import { html } from "../core/html.js";
import { t } from "../core/i18n.js";
import { labelOf, shown } from "./facts.js";

const without = (fields, name) => Object.fromEntries(Object.entries(fields).filter(([each]) => each !== name));

export function Recalled({ also, lost, onChange }) {
  const names = Object.keys(also);
  if (!names.length && !lost.length) return null;
  return html`<section class="panel form" aria-label=${t("Recalled")}>
    ${lost.length > 0 && html`<div role="status">${lost.map(([text, values]) => html`<p key=${text} class="warn">${t(text, values)}</p>`)}
      <button type="button" class="plain" onClick=${() => onChange({ lost: [] })}>${t("Dismiss")}</button></div>`}
    ${names.length > 0 && html`<div><h2>${t("Also sent")}</h2>
      <ul class="chips">${names.map((name) => html`<li key=${name} id=${name} tabindex="-1">${labelOf(name)}: ${shown(also[name])}
        <button type="button" class="plain" aria-label=${t("Leave out {name}", { name: labelOf(name) })} onClick=${() => onChange({ also: without(also, name) })}>×</button></li>`)}</ul></div>`}
  </section>`;
}
