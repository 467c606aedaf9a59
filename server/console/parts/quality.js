// The quality of a form. A number of steps stands in its place.
import { html } from "../core/html.js";
import { t, told } from "../core/i18n.js";
import { Select } from "./basics.js";

export const Quality = ({ model, values, onChange }) => model.qualities.length > 0 && html`<${Select} id="quality" label=${t("Quality")}
  value=${values.steps === "" ? values.quality || model.default_quality : ""}
  options=${[...(values.steps === "" ? [] : [["", t("by its steps")]]), ...model.qualities.map((name) => [name, told(name)])]}
  onChange=${(quality) => onChange({ quality, steps: "" })} />`;
