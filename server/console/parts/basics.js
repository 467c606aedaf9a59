// Small parts that every page uses.
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { language, N, t } from "../core/i18n.js";
import { setPageTitle } from "../core/title.js";

// What the server's errors mean, for those who do not read English: the message itself has the details.
const MEANINGS = {
  invalid_api_key: N("The key is unknown, expired or revoked."),
  group_mismatch: N("The key may not use this model."),
  insufficient_quota: N("The budget of the key, or of its team, is used up."),
  rate_limit_exceeded: N("Too many calls at once, or in this minute. Try again in a moment."),
  server_overloaded: N("The server is full. Try again in a moment."),
  moderation_blocked: N("Moderation refused this."),
  invalid_image_file: N("An image can't be read."),
  worker_died: N("The worker ended while it drew. Nothing was charged: try again."),
  engine_failure: N("Something went wrong on the server. Nothing was charged."),
  invalid_picture: N("What was drawn is not a picture. Nothing was charged."),
  exceeds_time_limit: N("This can't end within the time limit. Ask for less."),
  timeout: N("It took too long. Nothing was charged."),
  storage_failed: N("The server can't write to its disk. Nothing was charged."),
  database_busy: N("The database is busy. Try again in a moment."),
  database_failed: N("The database can't be used. Nothing was charged."),
  checkpoint_failed: N("The checkpoint can't be used. Nothing has changed."),
};

// What went wrong, with what a person needs to report it. It comes into sight, unless the page `stays` where it is since
// nobody has just pressed anything.
export function ErrorNote({ error, stays = false }) {
  const note = useRef();
  useLayoutEffect(() => {
    if (error && !stays) note.current.scrollIntoView({ block: "nearest" });
  }, [error]);
  if (!error) return null;
  const facts = [error.code, error.param && t("field {name}", { name: error.param }), error.requestId].filter(Boolean);
  return html`<div class="error" role="alert" ref=${note}>
    ${language.get() !== "en" && MEANINGS[error.code] && html`<p><strong>${t(MEANINGS[error.code])}</strong></p>`}
    <p>${error.message}</p>
    ${facts.length > 0 && html`<p class="dim small mono">${facts.join(" · ")}</p>`}
  </div>`;
}

export function Page({ title, actions, children }) {
  const heading = useRef();
  useLayoutEffect(() => {
    setPageTitle(title);
    heading.current.focus({ preventScroll: true }); // screen readers say where a link led
  }, [title]);
  return html`<main class="page" id="main">
    <header><h1 tabindex="-1" ref=${heading}>${title}</h1><div class="actions">${actions}</div></header>
    ${children}
  </main>`;
}

// A labelled control. `id` is the request's field, so that an error's `param` finds it.
export function Field({ label, id, as = "input", hint, children, ...control }) {
  return html`<div class="field"><label for=${id}>${label}</label>
    <${as} id=${id} name=${id} aria-describedby=${hint ? `${id}-hint` : undefined} ...${control}>${children}</${as}>
    ${hint && html`<span class="small dim" id="${id}-hint">${hint}</span>`}
  </div>`;
}

// Focuses the field that an error names, and unfolds what hides it.
export function useNamedField(error) {
  useLayoutEffect(() => {
    const field = error?.param && document.getElementById(error.param.replace(/\[.*/, ""));
    const details = field?.closest("details");
    if (details) details.open = true;
    field?.focus();
  }, [error]);
}

// A whole number of any length, which a field for numbers would round or cut.
export const DIGITS = { inputmode: "numeric", pattern: "[0-9]*", autocomplete: "off" };

export function Select({ options, value, onChange, ...rest }) {
  const choose = (event) => onChange(event.target.value);
  return html`<${Field} as="select" value=${value} onChange=${choose} ...${rest}>
    ${options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      return html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`;
    })}
  </${Field}>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// Rows as a table that scrolls by itself; on a phone each row is a list of its fields, which the roles keep a table for
// screen readers. A column: {name, show(row), number, wrap, long}; `long` is for names that people give.
export function Table({ label, columns, rows, rowKey, empty }) {
  if (rows && rows.length === 0) return html`<${Empty}>${empty}</${Empty}>`;
  const kind = (column) => [column.number && "number", column.wrap && "wrap", column.long && "long"].filter(Boolean).join(" ");
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table role="table">
      <thead role="rowgroup"><tr role="row">${columns.map((column) => html`<th key=${column.name} role="columnheader" scope="col" class=${kind(column)}>${column.name}</th>`)}</tr></thead>
      <tbody role="rowgroup">${(rows ?? []).map((row) => html`<tr key=${rowKey(row)} role="row">
        ${columns.map((column) => html`<td key=${column.name} role="cell" data-name=${column.name} class=${kind(column)}>${column.show(row)}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

export function Tile({ label, value, note }) {
  return html`<div class="tile"><span class="dim small">${label}</span><strong>${value}</strong>
    ${note && html`<span class="dim small">${note}</span>`}</div>`;
}

// A modal dialog. Escape and a click beside it close it, as browsers do, unless it `stays` until it is answered.
export function Dialog({ label, onClose, stays = false, children }) {
  const dialog = useRef();
  useLayoutEffect(() => {
    dialog.current.showModal();
  }, []);
  const beside = (event) => !stays && event.target === dialog.current && dialog.current.close();
  const closed = stays ? () => dialog.current?.showModal() : onClose; // browsers let a second Escape through
  return html`<dialog ref=${dialog} aria-label=${label} onCancel=${(event) => stays && event.preventDefault()} onClose=${closed} onClick=${beside}>${children}</dialog>`;
}

// The end of an id, which copies all of it.
export const Id = ({ id }) => html`<${Copy} text=${() => id}><code title=${id} aria-label=${t("Copy {id}", { id })}>…${id.slice(-8)}</code></${Copy}>`;

// Copies a text, and shows it where the browser gives pages no clipboard (over http, except from this machine).
export function Copy({ text, children }) {
  const [said, say] = useState(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      say(t("Copied."));
    } catch {
      say(text());
    }
  };
  return html`<button type="button" class="plain" onClick=${copy}>${children}</button>
    <span role="status" class="small mono">${said}</span>`;
}
