// What chats and conversations share: those before this one, to be opened, named and deleted; and messages to be changed.
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { deleted } from "../state/deletions.js";
import { Dialog, ErrorNote, Field } from "./basics.js";
import { useWork } from "./loading.js";

function Rename({ name, onName, onClose }) {
  const [title, setTitle] = useState(name);
  const work = useWork();
  const submit = async (event) => {
    event.preventDefault();
    if (await work.run(() => onName(title.trim()))) onClose();
  };
  return html`<${Dialog} label=${t("Rename")} onClose=${onClose}>
    <form class="form" onSubmit=${submit}>
      <h2>${t("Rename")}</h2>
      <${Field} id="title" label=${t("Title")} maxlength="200" value=${title} onInput=${(event) => setTitle(event.target.value)} hint=${t("Without a title, its first words stand here.")} />
      <div class="actions"><button class="primary" disabled=${work.busy}>${t("Save")}</button><button type="button" onClick=${onClose}>${t("Close")}</button></div>
      <${ErrorNote} error=${work.error} />
    </form>
  </${Dialog}>`;
}

// What stands below a message that may be taken back into the form.
export const ChangeMessage = ({ onChange }) => html`<div class="mine small"><button type="button" class="plain" onClick=${onChange}>${t("Change the message")}</button></div>`;

// `items` are {id, name}. `onRename` gets an id and a title, which may be empty.
export function Past({ title, note, items, busy, error, onOpen, onRename, onDelete, children }) {
  const [renamed, setRenamed] = useState(null);
  const gone = useStore(deleted);
  const shown = items.filter(({ id }) => !gone.has(id));
  return html`<section class="panel"><h2>${title}</h2>
    <${ErrorNote} error=${error} />
    ${shown.length === 0 && html`<p class="dim small">${t("None yet.")}</p>`}
    <ul class="past">${shown.map(({ id, name }) => html`<li key=${id}>
      <button type="button" class="name" title=${name} disabled=${busy} onClick=${() => onOpen(id)}><span class="clamp">${name}</span></button>
      <button type="button" class="plain" title=${t("Rename")} aria-label=${t("Rename {name}", { name })} onClick=${() => setRenamed({ id, name })}>✎</button>
      <button type="button" class="plain" title=${t("Delete")} aria-label=${t("Delete {name}", { name })} onClick=${() => onDelete(id)}>×</button>
    </li>`)}</ul>
    ${children}
    <p class="dim small note">${note}</p>
    ${renamed && html`<${Rename} name=${renamed.name} onName=${(name) => onRename(renamed.id, name)} onClose=${() => setRenamed(null)} />`}
  </section>`;
}
