// Gallery: every image of the key that the server keeps, by day.
import { readResult } from "../core/api.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { Link } from "../core/router.js";
import { useStore } from "../core/store.js";
import { save, zip } from "../core/zip.js";
import { Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { Images } from "../parts/images.js";
import { useList, useWork } from "../parts/loading.js";
import { fileName } from "../parts/viewer.js";
import { deleted, deleteImage } from "../state/deletions.js";
import { imageModels, models } from "../state/models.js";

function Filter({ onChange }) {
  const [words, setWords] = useState("");
  const [model, setModel] = useState("");
  const [favourite, setFavourite] = useState(false);
  const all = useStore(models);
  const submit = (event) => {
    event.preventDefault();
    onChange({ q: words.trim(), model, favourite: favourite || null });
  };
  return html`<form class="row" role="search" onSubmit=${submit}>
    <${Field} id="q" label=${t("Words of the prompt")} type="search" value=${words} onInput=${(event) => setWords(event.target.value)} />
    <${Select} id="of-model" label=${t("Model")} value=${model} options=${[["", t("all")], ...imageModels(all).map((each) => each.id)]} onChange=${setModel} />
    <label class="box"><input type="checkbox" name="favourite" checked=${favourite} onChange=${(event) => setFavourite(event.target.checked)} />${t("Favourites only")}</label>
    <button>${t("Filter")}</button>
  </form>`;
}

// Two images of one prompt and seed get names of their own.
function named(images) {
  const seen = new Map();
  return images.map((image) => {
    const name = fileName(image);
    const number = (seen.get(name) ?? 0) + 1;
    seen.set(name, number);
    return { image, name: number === 1 ? name : name.replace(/(\.\w+)$/, `_${number}$1`) };
  });
}

async function archive(images) {
  const files = [];
  for (const { image, name } of named(images)) files.push({ name, blob: await readResult(image.url) });
  save(await zip(files), "darkroom.zip");
}

// What is done with the images that were chosen.
function Chosen({ rows, chosen, onChange }) {
  const work = useWork();
  const images = rows.filter((image) => chosen.has(image.id));
  const remove = () => {
    images.forEach((image) => deleteImage(image.id));
    onChange(new Set());
  };
  return html`<div class="actions" role="group" aria-label=${t("Chosen images")}>
    <span role="status">${t("{number} chosen", { number: images.length })}</span>
    <button type="button" disabled=${images.length === rows.length} onClick=${() => onChange(new Set(rows.map((image) => image.id)))}>${t("Choose all")}</button>
    <button type="button" disabled=${!images.length} onClick=${() => onChange(new Set())}>${t("Choose none")}</button>
    <button type="button" disabled=${!images.length || work.busy} onClick=${() => work.run(() => archive(images))}>${t("Download as ZIP")}</button>
    <button type="button" disabled=${!images.length} onClick=${remove}>${t("Delete")}</button>
    <${ErrorNote} error=${work.error} />
  </div>`;
}

// The list goes on when its end comes into sight; the button is for those who have no wheel.
function More({ onMore }) {
  const button = useRef();
  useEffect(() => {
    const watch = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && onMore(), { rootMargin: "600px" });
    watch.observe(button.current);
    return () => watch.disconnect();
  }, [onMore]);
  return html`<div class="actions"><button type="button" ref=${button} onClick=${onMore}>${t("Show more")}</button></div>`;
}

export default function Gallery({ title }) {
  const [filter, setFilter] = useState({});
  const [chosen, setChosen] = useState(new Set());
  const { rows: listed, more, error, loadMore } = useList("/v1/darkroom/results", filter);
  const gone = useStore(deleted);
  const rows = listed?.filter((image) => !gone.has(image.id));
  const toggle = (id) => setChosen(new Set(chosen.has(id) ? [...chosen].filter((each) => each !== id) : [...chosen, id]));
  return html`<${Page} title=${title}>
    <${Filter} onChange=${setFilter} />
    <${ErrorNote} error=${error} />
    ${rows?.length === 0 && !error && html`<${Empty}>${t("No images here.")} <${Link} page="generate">${t("Generate")}</${Link}></${Empty}>`}
    ${rows?.length > 0 && html`<${Chosen} rows=${rows} chosen=${chosen} onChange=${setChosen} />
      <${Images} images=${rows} byDay chosen=${chosen} onChoose=${toggle} onDelete=${(image) => deleteImage(image.id)} />`}
    ${more && html`<${More} key=${more} onMore=${loadMore} />`}
  </${Page}>`;
}
