// The list of what keys do, which the question mark opens on every page.
import { html, useEffect, useState } from "../core/html.js";
import { N, t } from "../core/i18n.js";
import { isTyping } from "../core/keys.js";
import { Dialog } from "./basics.js";

const KEYS = [
  ["Ctrl+Enter", N("Generate, or send a message")],
  ["↑ ↓", N("In an empty prompt: earlier prompts")],
  ["Esc", N("Stop an answer; close what is open")],
  ["← →", N("Of an open image: the one before, the one after")],
  ["Z", N("Of an open image: zoom")],
  ["B", N("Of an open image: before and after")],
  ["F", N("Of an open image: make it a favourite, or no longer")],
  ["E", N("Of an open image: edit it")],
  ["R", N("Of an open image: recall all settings")],
  ["Delete", N("Of an open image: delete it")],
  ["Ctrl+Z", N("Take back what was deleted")],
  ["?", N("This list")],
];

export function Shortcuts() {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const press = (event) => event.key === "?" && !isTyping(event.target) && setOpen(true);
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return html`<button type="button" class="plain small" onClick=${() => setOpen(true)}>${t("Keyboard shortcuts")}</button>
    ${open && html`<${Dialog} label=${t("Keyboard shortcuts")} onClose=${() => setOpen(false)}>
      <div class="form"><h2>${t("Keyboard shortcuts")}</h2>
        <dl class="keys">${KEYS.map(([key, text]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${t(text)}</dd>`)}</dl>
        <form method="dialog"><button>${t("Close")}</button></form></div>
    </${Dialog}>`}`;
}
