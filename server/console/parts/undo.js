// What was deleted a moment ago, with Undo: over every page, so that another page can be opened meanwhile.
import { html, useEffect, useRef } from "../core/html.js";
import { t } from "../core/i18n.js";
import { isTyping } from "../core/keys.js";
import { useStore } from "../core/store.js";
import { deleted, failed, undoDeletion, waiting } from "../state/deletions.js";
import { ErrorNote } from "./basics.js";

function told(all) {
  if (all.length > 1) return all.every(({ kind }) => kind === "image") ? t("{number} images were deleted.", { number: all.length }) : t("{number} entries were deleted.", { number: all.length });
  return { image: t("The image was deleted."), chat: t("The chat was deleted."), conversation: t("The conversation was deleted.") }[all[0]?.kind];
}

export function Undo() {
  const all = useStore(waiting);
  const error = useStore(failed);
  const button = useRef();
  useStore(deleted);
  useEffect(() => {
    const keys = (event) => {
      if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || isTyping(event.target) || !waiting.get().length) return;
      event.preventDefault();
      undoDeletion();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);
  useEffect(() => {
    if (all.length) button.current?.focus({ preventScroll: true }); // the button that deleted it is gone
  }, [all.length]);
  return html`<div class="toasts">
    <div role="status" id="deleted">${told(all)}</div>
    ${all.length > 0 && html`<button type="button" ref=${button} aria-describedby="deleted" onClick=${undoDeletion}>${t("Undo")}</button>`}
    <${ErrorNote} error=${error} />
  </div>`;
}
