// Reference images of a form: chosen, dropped, pasted or earlier results.
import { html } from "../core/html.js";
import { t } from "../core/i18n.js";
import { sourceOf } from "../state/draft.js";
import { ErrorNote } from "./basics.js";
import { IMAGE_TYPES, readImage, useIncoming } from "./incoming.js";
import { useWork } from "./loading.js";

export function References({ sources, most, onChange }) {
  const work = useWork();
  const add = (files) => work.run(async () => {
    const added = await Promise.all(files.map(readImage));
    onChange([...sources, ...added].slice(0, most));
  });
  useIncoming(add);
  const choose = (event) => {
    const files = [...event.target.files];
    event.target.value = ""; // the same file can be chosen again
    add(files);
  };
  return html`<fieldset>
    <legend>${t("Reference images")}</legend>
    ${sources.length > 0 && html`<div class="references">${sources.map((source, index) => html`<figure key=${index}>
      <img src=${sourceOf(source)} alt=${t("Reference {number}", { number: index + 1 })} />
      <button type="button" aria-label=${t("Remove reference {number}", { number: index + 1 })}
        onClick=${() => onChange(sources.filter((_, other) => other !== index))}>×</button>
    </figure>`)}</div>`}
    <label for="image">${t("Add images, at most {most}: choose, drop or paste them", { most })}
      <input id="image" type="file" accept=${IMAGE_TYPES} multiple onChange=${choose} />
    </label>
    <${ErrorNote} error=${work.error} />
  </fieldset>`;
}
