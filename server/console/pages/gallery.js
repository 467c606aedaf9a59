// Gallery: every image of the key that the server keeps.
import { resultName, resultPath, thumbnail } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { Link } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { useList } from "../parts/loading.js";
import { Images } from "../parts/image.js";
import { deleted, deleteImage } from "../state/deletions.js";
import { imageModels, models } from "../state/models.js";

// What an image was made from, and what was made from it, as far as the list goes.
function Chain({ image, all }) {
  const parents = (image.parents ?? []).map(resultName);
  const made = all.filter((other) => (other.parents ?? []).map(resultName).includes(image.id)).map((other) => other.id);
  const strip = (label, names) => names.length > 0 && html`<div><h2>${label}</h2><div class="references">
    ${names.map((name) => html`<a key=${name} href=${resultPath(name)} target="_blank" rel="noreferrer"><img src=${thumbnail(name, 160)} alt=${name} /></a>`)}
  </div></div>`;
  return html`${strip(t("Made from"), parents)}${strip(t("Made from this"), made)}`;
}

function Filter({ onChange }) {
  const [words, setWords] = useState("");
  const [model, setModel] = useState("");
  const all = useStore(models);
  const submit = (event) => {
    event.preventDefault();
    onChange({ q: words.trim(), model });
  };
  return html`<form class="row" role="search" onSubmit=${submit}>
    <${Field} id="q" label=${t("Words of the prompt")} type="search" value=${words} onInput=${(event) => setWords(event.target.value)} />
    <${Select} id="of-model" label=${t("Model")} value=${model} options=${[["", t("all")], ...imageModels(all).map((each) => each.id)]} onChange=${setModel} />
    <button>${t("Filter")}</button>
  </form>`;
}

export default function Gallery({ title }) {
  const [filter, setFilter] = useState({});
  const { rows: listed, more, error, loadMore } = useList("/v1/darkroom/results", filter);
  const gone = useStore(deleted);
  const rows = listed?.filter((image) => !gone.has(image.id));
  return html`<${Page} title=${title}>
    <${Filter} onChange=${setFilter} />
    <${ErrorNote} error=${error} />
    ${rows?.length === 0 && !error && html`<${Empty}>${t("No images here.")} <${Link} page="generate">${t("Generate")}</${Link}></${Empty}>`}
    ${rows?.length > 0 && html`<${Images} images=${rows} onDelete=${(image) => deleteImage(image.id)} about=${(image) => html`<${Chain} image=${image} all=${rows} />`} />`}
    ${more && html`<div class="actions"><button type="button" onClick=${loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
