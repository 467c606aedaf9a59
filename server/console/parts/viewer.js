// An image at large, with all that is known of it and can be done with it.
import { query, resultName, resultPath, thumbnail } from "../core/api.js";
import { html, useEffect, useLayoutEffect, useState } from "../core/html.js";
import { money, N, t } from "../core/i18n.js";
import { isTyping } from "../core/keys.js";
import { navigate } from "../core/router.js";
import { useStore } from "../core/store.js";
import { addReference, referenceTo } from "../state/draft.js";
import { startUpscale } from "../state/jobs.js";
import { toggleFavourite } from "../state/favourites.js";
import { enlargerOf, findModel, models } from "../state/models.js";
import { recall } from "../state/recall.js";
import { reproduce } from "../state/reproduction.js";
import { Dialog, ErrorNote } from "./basics.js";
import { BeforeAfter } from "./before-after.js";
import { Facts, labelOf, shown, sizeOf } from "./facts.js";
import { Favourite } from "./favourite.js";
import { useRoute, useWork } from "./loading.js";

export const altOf = (image) => image.prompt || t("Image with seed {seed}", { seed: image.seed });

const WORDS = /[\p{L}\p{N}]+/gu;
const MOST_LETTERS = 48;

// A name for a file that says what it shows.
export function fileName(image) {
  const words = (image.prompt ?? "").toLowerCase().match(WORDS) ?? [];
  const text = words.join("-").slice(0, MOST_LETTERS).replace(/-[^-]*$/, (end) => (words.join("-").length > MOST_LETTERS ? "" : end));
  const seed = image.seed == null ? "" : `_seed${image.seed}`;
  return text ? `${text}${seed}${image.id.slice(image.id.lastIndexOf("."))}` : image.id;
}

const toEdit = (image) => navigate("edit", { image: resultName(image.url) });
function toReference(image) {
  addReference(referenceTo(image.url));
  navigate("generate");
}

// What one click does with an image, on its card.
export const Quick = ({ image }) => html`<div class="quick">
  <button type="button" class="plain" onClick=${() => toEdit(image)}>${t("Edit")}</button>
  <button type="button" class="plain" onClick=${() => toReference(image)}>${t("Use as reference")}</button>
  <button type="button" class="plain" onClick=${() => recall(image, { seed: "" })}>${t("With another seed")}</button>
  <${Enlarge} image=${image} looks="plain" />
</div>`;

function Actions({ image, onLeave }) {
  const leading = (act) => () => {
    onLeave(); // what an action leads to is under the dialog
    act();
  };
  return html`<div class="actions">
    <button type="button" onClick=${leading(() => recall(image))}>${t("Recall all settings")}</button>
    <button type="button" onClick=${leading(() => recall(image, { seed: "" }))}>${t("With another seed")}</button>
    <button type="button" onClick=${leading(() => toReference(image))}>${t("Use as reference")}</button>
    <button type="button" onClick=${leading(() => toEdit(image))}>${t("Edit")}</button>
    <a class="button" href=${resultPath(image.url)} download=${fileName(image)}>${t("Download")}</a>
  </div>`;
}

// What an image was made from, and what was made from it: each opens here.
function Chain({ image, onOpen }) {
  const [gone, setGone] = useState([]);
  const made = useRoute(query("/v1/darkroom/results", { parent: image.id, order: "asc", limit: 30 }));
  const strip = (label, word, names) => names.length > 0 && html`<div><h2>${label}</h2><div class="references">
    ${names.map((name, index) => html`<button type="button" key=${name} aria-label=${t(word, { number: index + 1 })} onClick=${() => onOpen(name)}>
      <img src=${thumbnail(name, 160)} alt="" onError=${() => setGone([...gone, name])} /></button>`)}
  </div></div>`;
  const parents = (image.parents ?? []).map(resultName).filter((name) => !gone.includes(name));
  return html`${strip(t("Made from"), N("Open what it was made from, {number}"), parents)}
    ${strip(t("Made from this"), N("Open what was made from it, {number}"), made.data?.data.map((each) => each.id) ?? [])}`;
}

function Outcome({ found }) {
  const value = (one) => (one === undefined ? t("nothing") : shown(one));
  const told = found.pixels === 0
    ? t("The same, bit for bit.")
    : found.pixels === null ? t("Not the same: it has another size.") : t("Not the same: {pixels} of {of} pixels differ, by {most} of 255 at most.", found);
  return html`<div role="status" class="form">
    <p class=${found.pixels === 0 ? "good" : "warn"}><strong>${told}</strong></p>
    ${found.pixels !== 0 && found.wasMerged && html`<p class="small">${t("It shared its computation with other images: drawn again, its lowest bits may differ. Images that are drawn alone, bit for bit, come out the same each time.")}</p>`}
    ${found.changes.map(([name, old, now]) => html`<p key=${name} class="small">${labelOf(name)}: ${value(old)} → ${value(now)}</p>`)}
  </div>`;
}

function Reproduce({ image }) {
  const work = useWork();
  const [found, setFound] = useState(null);
  const price = findModel(models.get(), image.model)?.price;
  const start = () => work.run(async () => setFound(await reproduce(image)));
  return html`<div class="form">
    <div class="actions"><button type="button" disabled=${work.busy} onClick=${start}>${work.busy ? t("Drawing") : t("Draw again and compare")} · ${money(price)}</button></div>
    <${ErrorNote} error=${work.error} />
    ${found && html`<${Outcome} found=${found} />`}
  </div>`;
}

const SCALE = 2;

function Enlarge({ image, onLeave, looks = "" }) {
  const work = useWork();
  const model = enlargerOf(useStore(models), { model: image.model, size: sizeOf(image) }, SCALE);
  const begin = async () => {
    await startUpscale({ model: model.id, image: referenceTo(image.url), scale: SCALE, prompt: image.prompt ?? "", response_format: "url" });
    onLeave?.();
    navigate("generate");
  };
  return model && html`<button type="button" class=${looks} disabled=${work.busy} onClick=${() => work.run(begin)}>${t("Enlarge {scale} times", { scale: SCALE })} · ${money(model.price)}</button>
    <${ErrorNote} error=${work.error} />`;
}

function Stage({ image, isZoomed, onZoom, before }) {
  if (before) return html`<${BeforeAfter} id="viewer-share" before=${resultPath(before)} after=${resultPath(image.url)} />`;
  return html`<div class=${`stage ${isZoomed ? "zoomed" : ""}`} tabindex=${isZoomed ? 0 : undefined} role=${isZoomed ? "region" : undefined} aria-label=${isZoomed ? t("Image") : undefined}>
    <img src=${resultPath(image.url)} alt=${altOf(image)} onClick=${onZoom} /></div>`;
}

function useKeys(keys) {
  useLayoutEffect(() => {
    const press = (event) => {
      if (event.target.type === "range" && event.key.startsWith("Arrow")) return; // it moves the slider
      if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
      keys[event.key]?.();
    };
    addEventListener("keydown", press); // not on the dialog: what has the focus may go with the image
    return () => removeEventListener("keydown", press);
  });
}

// `listed` is an image of the page; another one of its chain may be shown in its place.
export function Viewer({ listed, onClose, onDelete, onStep }) {
  const [name, setName] = useState(null);
  const [isZoomed, setZoomed] = useState(false);
  const [compares, setCompares] = useState(false);
  const [problem, setProblem] = useState(null);
  const wanted = name ?? (listed.parents ? null : listed.id);
  const { data, error } = useRoute(wanted && `/v1/darkroom/results/${wanted}`);
  const found = data?.id === wanted ? data : null;
  const image = name ? found : { ...found, ...listed, parents: found?.parents ?? listed.parents ?? [] };
  useEffect(() => {
    setName(null);
    setCompares(false);
  }, [listed.id]);
  const parent = image?.parents.at(0);
  const zoom = () => setZoomed(!isZoomed);
  const compare = () => parent && setCompares(!compares);
  const go = (act) => () => {
    if (!image) return;
    onClose();
    act(image);
  };
  useKeys({
    ArrowRight: () => onStep(1), ArrowLeft: () => onStep(-1), Delete: () => image && onDelete?.(image),
    z: zoom, b: compare, f: () => image && toggleFavourite(image).catch(setProblem), e: go(toEdit), r: go(recall),
  });
  if (!image) return html`<${Dialog} label=${t("Image")} onClose=${onClose}><${ErrorNote} error=${error} /><form method="dialog"><button>${t("Close")}</button></form></${Dialog}>`;
  return html`<${Dialog} label=${t("Image")} onClose=${onClose}>
    <div class="viewer">
      <${Stage} image=${image} isZoomed=${isZoomed} onZoom=${zoom} before=${compares && parent} />
      <div class="about">
        <div class="actions">
          <button type="button" aria-pressed=${isZoomed} onClick=${zoom}>${t("Zoom")}</button>
          ${parent && html`<button type="button" aria-pressed=${compares} onClick=${compare}>${t("Before and after")}</button>`}
          <${Favourite} image=${image}>${t("Favourite")}</${Favourite}>
          ${name && html`<button type="button" onClick=${() => setName(null)}>${t("Back")}</button>`}
        </div>
        <${ErrorNote} error=${problem} />
        ${image.prompt && html`<p>${image.prompt}</p>`}
        <${Actions} image=${image} onLeave=${onClose} />
        <${Chain} key=${`chain ${image.id}`} image=${image} onOpen=${(other) => { setName(other); setCompares(false); }} />
        <${Facts} image=${image} />
        <div class="actions"><${Enlarge} key=${`enlarge ${image.id}`} image=${image} onLeave=${onClose} /></div>
        <${Reproduce} key=${`again ${image.id}`} image=${image} />
        <form method="dialog" class="actions apart"><button>${t("Close")}</button>
          ${onDelete && html`<button type="button" class="far" onClick=${() => onDelete(image)}>${t("Delete")}</button>`}</form>
      </div>
    </div>
  </${Dialog}>`;
}
