// A finished image: its card, and the large view with everything that can be done with it.
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

// The images of a finished call, as the gallery lists them. Of a call that another page started, the server's record
// says what was sent.
export function imagesOf(job) {
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
      parameters: { ...result.parameters, quality: result.quality, size: result.size, output_format: result.output_format, ...(result.background === "transparent" && { background: result.background }) },
      created_at: result.created,
      references: request && (request.image ?? []),
      strokes: request?.strokes,
      ...Object.fromEntries(stored),
    };
  });
}

const altOf = (image) => image.prompt || t("Image with seed {seed}", { seed: image.seed });

// `onLeave` closes what is over the page to which an action leads.
export function Actions({ image, onLeave }) {
  const leading = (act) => () => {
    onLeave();
    act();
  };
  const reference = () => {
    addReference(referenceTo(image.url));
    navigate("generate");
  };
  return html`<div class="actions">
    <button type="button" onClick=${leading(() => recall(image))}>${t("Recall all settings")}</button>
    <button type="button" onClick=${leading(reference)}>${t("Use as reference")}</button>
    <button type="button" onClick=${leading(() => navigate("edit", { image: resultName(image.url) }))}>${t("Edit")}</button>
    <a class="button" href=${resultPath(image.url)} download=${image.id}>${t("Download")}</a>
  </div>`;
}

export function Viewer({ image, onClose, onDelete, onStep, children }) {
  useLayoutEffect(() => {
    const keys = (event) => {
      if (event.key === "ArrowRight") onStep(1);
      if (event.key === "ArrowLeft") onStep(-1);
      if (event.key === "Delete") onDelete?.();
    };
    addEventListener("keydown", keys); // not on the dialog: what has the focus may go with the image
    return () => removeEventListener("keydown", keys);
  }, [onStep]);
  return html`<${Dialog} label=${t("Image")} onClose=${onClose}>
    <div class="viewer">
      <img src=${resultPath(image.url)} alt=${altOf(image)} />
      <div class="about">
        ${image.prompt && html`<p>${image.prompt}</p>`}
        <${Facts} image=${image} />
        ${children}
        <${Actions} image=${image} onLeave=${onClose} />
        <form method="dialog" class="actions apart"><button>${t("Close")}</button>
          ${onDelete && html`<button type="button" class="far" onClick=${onDelete}>${t("Delete")}</button>`}</form>
      </div>
    </div>
  </${Dialog}>`;
}

export function ImageCard({ image, onOpen }) {
  return html`<figure class="card" data-name=${image.id}>
    <button type="button" class="open" aria-label=${t("Open {what}", { what: altOf(image) })} onClick=${onOpen}>
      <img src=${thumbnail(image.url)} alt="" loading="lazy" />
    </button>
    <figcaption>
      ${image.prompt && html`<span class="clamp">${image.prompt}</span>`}
      <span class="dim">${image.model} · ${sizeOf(image)} · ${t("seed {seed}", { seed: image.seed ?? "–" })}</span>
    </figcaption>
  </figure>`;
}

// A grid of cards, one of which may be open.
export function Images({ images: all, onDelete, about }) {
  const [open, setOpen] = useState(null);
  const gone = useStore(deleted);
  const images = all.filter((each) => !gone.has(each.id));
  const index = images.findIndex((image) => image.id === open);
  const image = images[index];
  const step = (by) => images[index + by] && setOpen(images[index + by].id);
  return html`<div class="images">
    ${images.map((each) => html`<${ImageCard} key=${each.id} image=${each} onOpen=${() => setOpen(each.id)} />`)}
    ${image && html`<${Viewer} image=${image} onClose=${() => setOpen(null)} onStep=${step}
      onDelete=${onDelete && (() => { setOpen(null); onDelete(image); })}>${about?.(image)}</${Viewer}>`}
  </div>`;
}
