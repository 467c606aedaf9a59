// A finished picture: its card, and the large view with everything that can be done with it.
import { resultName, resultPath, thumbnail } from "../core/api.js";
import { html, useLayoutEffect, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { navigate } from "../core/router.js";
import { useStore } from "../core/store.js";
import { deleted } from "../state/deletions.js";
import { addReference, referenceTo } from "../state/draft.js";
import { recall } from "../state/recall.js";
import { Dialog } from "./basics.js";
import { Facts, sizeOf } from "./facts.js";

// The pictures of a finished call, as the gallery lists them. Of a call that another page started, the server's record
// says what was sent.
export function picturesOf(job) {
  const { result, request } = job;
  return (result?.data ?? []).filter((item) => item.url).map((item) => {
    const id = resultName(item.url);
    const stored = Object.entries(job.stored?.find((entry) => entry.id === id) ?? {}).filter(([, value]) => value != null);
    return {
      id,
      call_id: job.id,
      url: item.url,
      prompt: request?.prompt,
      model: result.parameters.model,
      endpoint: request?.endpoint,
      size: result.size,
      seed: item.seed,
      parameters: { ...result.parameters, quality: result.quality, size: result.size, output_format: result.output_format },
      created_at: result.created,
      references: request && (request.image ?? []),
      strokes: request?.strokes,
      ...Object.fromEntries(stored),
    };
  });
}

const altOf = (picture) => picture.prompt || t("Image with seed {seed}", { seed: picture.seed });

// `onLeave` closes what is over the page to which an action leads.
export function Actions({ picture, onLeave }) {
  const leading = (act) => () => {
    onLeave();
    act();
  };
  const reference = () => {
    addReference(referenceTo(picture.url));
    navigate("generate");
  };
  return html`<div class="actions">
    <button type="button" onClick=${leading(() => recall(picture))}>${t("Recall all settings")}</button>
    <button type="button" onClick=${leading(reference)}>${t("Use as reference")}</button>
    <button type="button" onClick=${leading(() => navigate("edit", { image: resultName(picture.url) }))}>${t("Edit")}</button>
    <a class="button" href=${resultPath(picture.url)} download=${picture.id}>${t("Download")}</a>
  </div>`;
}

export function Viewer({ picture, onClose, onDelete, onStep, children }) {
  useLayoutEffect(() => {
    const keys = (event) => {
      if (event.key === "ArrowRight") onStep(1);
      if (event.key === "ArrowLeft") onStep(-1);
      if (event.key === "Delete") onDelete?.();
    };
    addEventListener("keydown", keys); // not on the dialog: what has the focus may go with the picture
    return () => removeEventListener("keydown", keys);
  }, [onStep]);
  return html`<${Dialog} label=${t("Image")} onClose=${onClose}>
    <div class="viewer">
      <img src=${resultPath(picture.url)} alt=${altOf(picture)} />
      <div class="about">
        ${picture.prompt && html`<p>${picture.prompt}</p>`}
        <${Facts} picture=${picture} />
        ${children}
        <${Actions} picture=${picture} onLeave=${onClose} />
        <form method="dialog" class="actions apart"><button>${t("Close")}</button>
          ${onDelete && html`<button type="button" class="far" onClick=${onDelete}>${t("Delete")}</button>`}</form>
      </div>
    </div>
  </${Dialog}>`;
}

export function PictureCard({ picture, onOpen }) {
  return html`<figure class="card" data-name=${picture.id}>
    <button type="button" class="open" aria-label=${t("Open {what}", { what: altOf(picture) })} onClick=${onOpen}>
      <img src=${thumbnail(picture.url)} alt="" loading="lazy" />
    </button>
    <figcaption>
      ${picture.prompt && html`<span class="clamp">${picture.prompt}</span>`}
      <span class="dim">${picture.model} · ${sizeOf(picture)} · ${t("seed {seed}", { seed: picture.seed ?? "–" })}</span>
    </figcaption>
  </figure>`;
}

// A grid of cards, one of which may be open.
export function Pictures({ pictures: all, onDelete, about }) {
  const [open, setOpen] = useState(null);
  const gone = useStore(deleted);
  const pictures = all.filter((each) => !gone.has(each.id));
  const index = pictures.findIndex((picture) => picture.id === open);
  const picture = pictures[index];
  const step = (by) => pictures[index + by] && setOpen(pictures[index + by].id);
  return html`<div class="pictures">
    ${pictures.map((each) => html`<${PictureCard} key=${each.id} picture=${each} onOpen=${() => setOpen(each.id)} />`)}
    ${picture && html`<${Viewer} picture=${picture} onClose=${() => setOpen(null)} onStep=${step}
      onDelete=${onDelete && (() => { setOpen(null); onDelete(picture); })}>${about?.(picture)}</${Viewer}>`}
  </div>`;
}
