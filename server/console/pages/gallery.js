// Gallery: every picture of the key that the server keeps.
import { resultName, resultPath, thumbnail } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { Link } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { useList } from "../parts/loading.js";
import { Pictures } from "../parts/picture.js";
import { deleted, deletePicture } from "../state/deletions.js";
import { imageModels, models } from "../state/models.js";

// What a picture was made from, and what was made from it, as far as the list goes.
function Chain({ picture, all }) {
  const parents = (picture.parents ?? []).map(resultName);
  const made = all.filter((other) => (other.parents ?? []).map(resultName).includes(picture.id)).map((other) => other.id);
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
  const rows = listed?.filter((picture) => !gone.has(picture.id));
  return html`<${Page} title=${title}>
    <${Filter} onChange=${setFilter} />
    <${ErrorNote} error=${error} />
    ${rows?.length === 0 && !error && html`<${Empty}>${t("No images here.")} <${Link} page="generate">${t("Generate")}</${Link}></${Empty}>`}
    ${rows?.length > 0 && html`<${Pictures} pictures=${rows} onDelete=${(picture) => deletePicture(picture.id)} about=${(picture) => html`<${Chain} picture=${picture} all=${rows} />`} />`}
    ${more && html`<div class="actions"><button type="button" onClick=${loadMore}>${t("Show more")}</button></div>`}
  </${Page}>`;
}
