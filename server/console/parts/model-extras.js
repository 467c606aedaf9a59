// What only some models have in the form: schedulers, adapters and controls that a request may choose.
import { html } from "../core/html.js";
import { t } from "../core/i18n.js";
import { sourceOf } from "../state/draft.js";
import { ErrorNote, Field, Select } from "./basics.js";
import { IMAGE_TYPES, readImage } from "./incoming.js";
import { useWork } from "./loading.js";

const without = (values, name) => Object.fromEntries(Object.entries(values).filter(([each]) => each !== name));

function Adapters({ names, chosen, onChange }) {
  return html`<fieldset id="loras" tabindex="-1"><legend>${t("Adapters")}</legend>
    ${names.map((name) => html`<div key=${name} class="row">
      <label class="field"><input type="checkbox" name="loras" value=${name} checked=${name in chosen}
        onChange=${(event) => onChange(event.target.checked ? { ...chosen, [name]: 1 } : without(chosen, name))} />${name}</label>
      ${name in chosen && html`<${Field} id=${`lora-${name}`} type="number" min="-4" max="4" step="any" label=${t("Weight")} value=${chosen[name]}
        onInput=${(event) => onChange({ ...chosen, [name]: event.target.value })} />`}
    </div>`)}
  </fieldset>`;
}

function Control({ card, chosen, onChange }) {
  const work = useWork();
  const choose = (event) => {
    const [file] = event.target.files;
    event.target.value = ""; // the same file can be chosen again
    if (file) work.run(async () => onChange({ image: await readImage(file), strength: chosen?.strength ?? "" }));
  };
  const what = card.map ? `${card.name} (${card.map})` : card.name;
  return html`<div class="row">
    ${chosen && html`<div class="references"><figure><img src=${sourceOf(chosen.image)} alt=${what} />
      <button type="button" aria-label=${t("Leave out {name}", { name: what })} onClick=${() => onChange(null)}>×</button></figure></div>`}
    <${Field} id=${`control-${card.name}`} type="file" accept=${IMAGE_TYPES} label=${what} onChange=${choose} />
    ${chosen && html`<${Field} id=${`strength-${card.name}`} type="number" min="0" max="2" step="any" label=${t("Strength")} placeholder=${card.strength ?? t("auto")} value=${chosen.strength}
      onInput=${(event) => onChange({ ...chosen, strength: event.target.value })} />`}
    <${ErrorNote} error=${work.error} />
  </div>`;
}

function Controls({ cards, chosen, onChange }) {
  const change = (name) => (value) => onChange(value ? { ...chosen, [name]: value } : without(chosen, name));
  return html`<fieldset id="controls" tabindex="-1"><legend>${t("Controls")}</legend>
    ${cards.map((card) => html`<${Control} key=${card.name} card=${card} chosen=${chosen[card.name]} onChange=${change(card.name)} />`)}
  </fieldset>`;
}

export function ModelExtras({ model, values, onChange }) {
  return html`
    ${model.schedulers.length > 0 && html`<${Select} id="scheduler" label=${t("Scheduler")} value=${values.scheduler} options=${[["", t("the model's own")], ...model.schedulers]} onChange=${(scheduler) => onChange({ scheduler })} />`}
    ${model.adapters.length > 0 && html`<${Adapters} names=${model.adapters} chosen=${values.loras} onChange=${(loras) => onChange({ loras })} />`}
    ${model.controls.length > 0 && html`<${Controls} cards=${model.controls} chosen=${values.controls} onChange=${(controls) => onChange({ controls })} />`}`;
}
