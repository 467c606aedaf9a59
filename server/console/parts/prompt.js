// The prompt's field. It says how much of what the model reads a prompt takes: as the server counted it, once it was
// drawn, and until then by an estimate.
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { jobs } from "../state/jobs.js";
import { Field } from "./basics.js";

// Tokenizers have most words of up to seven Latin letters whole; of other writing, a letter is about one token.
const PIECES = /\p{Script=Latin}{1,7}|\p{L}|\p{N}|[^\s\p{L}\p{N}]+/gu;
const estimated = (text) => text.match(PIECES)?.length ?? 0;

function counted(model, text, all) {
  const same = all.find(({ request, result }) => result && !result.parameters.enhanced_by && request?.prompt === text && result.parameters.model === model.id);
  return same?.result.parameters.prompt_tokens;
}

function telling(model, text, all) {
  const of = model.limits.prompt_tokens;
  const tokens = counted(model, text, all);
  if (tokens?.cut) {
    const unread = tokens.cut_at == null ? "…" : Array.from(text).slice(tokens.cut_at).join("").trim();
    return t("{used} of {of} tokens. This was not read: {text}", { used: tokens.used + tokens.cut, of: tokens.of, text: unread });
  }
  if (tokens) return t("{used} of {of} tokens.", { used: tokens.used, of: tokens.of ?? "∞" });
  if (of == null || text === "") return "";
  const used = estimated(text);
  return used > of
    ? t("About {used} of {of} tokens: the end may not be read.", { used, of })
    : t("About {used} of {of} tokens.", { used, of });
}

// Takes an earlier prompt by the arrow keys, with the caret at the beginning. What was typed is never replaced.
function takeEarlier(event, value, all, onInput) {
  const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  const earlier = [...new Set(all.map(({ request }) => request?.prompt).filter(Boolean))]; // newest first
  const here = earlier.indexOf(value);
  const next = here + by;
  if (!by || event.target.selectionEnd !== 0 || (value && here < 0) || next < -1 || next >= earlier.length) return;
  event.preventDefault();
  onInput({ target: { value: earlier[next] ?? "" } });
}

export function PromptField({ model, value, hint = "", onInput, ...rest }) {
  const all = useStore(jobs);
  const field = useRef();
  const [isTaken, setTaken] = useState(false);
  useLayoutEffect(() => {
    if (isTaken) field.current.querySelector("textarea").setSelectionRange(0, 0); // so that the next key goes on
  }, [value]);
  const take = (event) => takeEarlier(event, value, all, (taken) => {
    setTaken(true);
    onInput(taken);
  });
  const type = (event) => {
    setTaken(false);
    onInput(event);
  };
  const said = [hint, telling(model, value.trim(), all)].filter(Boolean).join(" ");
  return html`<div ref=${field}><${Field} as="textarea" id="prompt" required maxlength=${model.limits.max_prompt_characters} value=${value} hint=${said} onInput=${type} onKeyDown=${take} ...${rest} /></div>`;
}
