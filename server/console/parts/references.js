// Reference images of a form: dropped, chosen or earlier results.
import { resultPath } from "../core/api.js";
import { html } from "../core/html.js";
import { t } from "../core/i18n.js";

const read = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

export function References({ sources, most, onChange }) {
  const add = async (files) => {
    const added = await Promise.all([...files].map(read));
    onChange([...sources, ...added].slice(0, most));
  };
  const choose = async (event) => {
    await add(event.target.files);
    event.target.value = "";
  };
  const drop = (event) => {
    event.preventDefault();
    add(event.dataTransfer.files);
  };
  return html`<fieldset onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
    <legend>${t("Reference images")}</legend>
    ${sources.length > 0 && html`<div class="references">${sources.map((source, index) => html`<figure key=${index}>
      <img src=${source.startsWith("data:") ? source : resultPath(source)} alt=${t("Reference {number}", { number: index + 1 })} />
      <button type="button" aria-label=${t("Remove reference {number}", { number: index + 1 })}
        onClick=${() => onChange(sources.filter((_, other) => other !== index))}>×</button>
    </figure>`)}</div>`}
    <label for="image">${t("Add images, at most {most}", { most })}
      <input id="image" type="file" accept="image/png,image/jpeg,image/webp,image/gif" multiple onChange=${choose} />
    </label>
  </fieldset>`;
}
