// Finished images: their cards in a grid, one of which may be open.
import { resultName, thumbnail } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { date, t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { deleted } from "../state/deletions.js";
import { sizeOf } from "./facts.js";
import { Favourite } from "./favourite.js";
import { altOf, Quick, Viewer } from "./viewer.js";

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
      prompt: item.revised_prompt ?? request?.prompt,
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

// `chosen` and `onChoose` are there where several may be chosen.
function ImageCard({ image, onOpen, chosen, onChoose }) {
  return html`<figure class="card" data-name=${image.id}>
    <button type="button" class="open" aria-label=${t("Open {what}", { what: altOf(image) })} onClick=${onOpen}>
      <img src=${thumbnail(image.url)} alt="" loading="lazy" />
    </button>
    ${onChoose && html`<label class="choose"><input type="checkbox" aria-label=${t("Choose {what}", { what: altOf(image) })} checked=${chosen} onChange=${onChoose} /></label>`}
    ${image.favourite !== undefined && html`<${Favourite} image=${image} what=${altOf(image)} />`}
    <figcaption>
      ${image.prompt && html`<span class="clamp">${image.prompt}</span>`}
      <span class="dim">${image.model} · ${sizeOf(image)} · ${t("seed {seed}", { seed: image.seed ?? "–" })}</span>
      <${Quick} image=${image} />
    </figcaption>
  </figure>`;
}

// A heading for each day stands before its first image, where `byDay`.
export function Images({ images: all, onDelete, byDay = false, chosen, onChoose }) {
  const [open, setOpen] = useState(null);
  const gone = useStore(deleted);
  const images = all.filter((each) => !gone.has(each.id));
  const index = images.findIndex((image) => image.id === open);
  const image = images[index];
  const step = (by) => images[index + by] && setOpen(images[index + by].id);
  const dayOf = (each) => (byDay ? date(each.created_at) : null);
  return html`<div class="images">
    ${images.map((each, place) => html`
      ${byDay && (place === 0 || dayOf(each) !== dayOf(images[place - 1])) && html`<h2 key=${dayOf(each)} class="day">${dayOf(each)}</h2>`}
      <${ImageCard} key=${each.id} image=${each} onOpen=${() => setOpen(each.id)} chosen=${chosen?.has(each.id)} onChoose=${onChoose && (() => onChoose(each.id))} />`)}
    ${image && html`<${Viewer} listed=${image} onClose=${() => setOpen(null)} onStep=${step}
      onDelete=${onDelete && ((one) => { setOpen(null); onDelete(one); })} />`}
  </div>`;
}
