// A finished picture: its card, and the large view with everything that can be done with it.
import { resultName, resultPath, thumbnail } from "../core/api.js";
import { html, useLayoutEffect, useState } from "../core/html.js";
import { t, told, when } from "../core/i18n.js";
import { navigate } from "../core/router.js";
import { addReference, recall } from "../state/draft.js";
import { Dialog } from "./basics.js";

// The pictures of a finished call, as the gallery lists them.
export function picturesOf(job) {
  const { result, request } = job;
  return (result?.data ?? []).filter((item) => item.url).map((item) => ({
    id: resultName(item.url),
    url: item.url,
    prompt: request?.prompt ?? null,
    model: result.parameters.model,
    size: result.size,
    seed: item.seed,
    parameters: result.parameters,
    created_at: result.created,
    parents: (request?.image ?? []).filter((url) => url.includes("/cdn/")).map(resultName),
  }));
}

const sizeOf = (picture) => picture.size ?? (picture.width ? `${picture.width}x${picture.height}` : "–");
const altOf = (picture) => picture.prompt || t("Image with seed {seed}", { seed: picture.seed });

function Facts({ picture }) {
  const used = picture.parameters ?? {};
  const facts = [
    [t("Model"), picture.model],
    [t("Size"), sizeOf(picture)],
    [t("Seed"), picture.seed],
    [t("Steps"), used.steps],
    [t("Guidance"), used.guidance],
    [t("Strength"), used.strength],
    [t("Quality"), used.quality && told(used.quality)],
    [t("Negative prompt"), used.negative_prompt],
    [t("Time"), picture.created_at && when(picture.created_at)],
  ];
  return html`<dl>${facts.filter(([, value]) => value != null && value !== "").map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export function Actions({ picture, onDelete }) {
  const reference = () => {
    addReference(`${location.origin}${resultPath(picture.url)}`);
    navigate("generate");
  };
  return html`<div class="actions">
    <button type="button" onClick=${() => recall(picture)}>${t("Recall all settings")}</button>
    <button type="button" onClick=${reference}>${t("Use as reference")}</button>
    <button type="button" onClick=${() => navigate("edit", { image: resultName(picture.url) })}>${t("Edit")}</button>
    <a class="button" href=${resultPath(picture.url)} download=${picture.id}>${t("Download")}</a>
    ${onDelete && html`<button type="button" onClick=${onDelete}>${t("Delete")}</button>`}
  </div>`;
}

export function Viewer({ picture, onClose, onDelete, onStep, children }) {
  useLayoutEffect(() => {
    const keys = (event) => {
      if (event.key === "ArrowRight") onStep(1);
      if (event.key === "ArrowLeft") onStep(-1);
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
        <${Actions} picture=${picture} onDelete=${onDelete} />
        <form method="dialog"><button>${t("Close")}</button></form>
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
export function Pictures({ pictures, onDelete, about }) {
  const [open, setOpen] = useState(null);
  const index = pictures.findIndex((picture) => picture.id === open);
  const picture = pictures[index];
  const step = (by) => pictures[index + by] && setOpen(pictures[index + by].id);
  return html`<div class="pictures">
    ${pictures.map((each) => html`<${PictureCard} key=${each.id} picture=${each} onOpen=${() => setOpen(each.id)} />`)}
    ${picture && html`<${Viewer} picture=${picture} onClose=${() => setOpen(null)} onStep=${step}
      onDelete=${onDelete && (() => { setOpen(null); onDelete(picture); })}>${about?.(picture)}</${Viewer}>`}
  </div>`;
}
