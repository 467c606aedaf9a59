// The two choices of how the console looks, below its pages.
import { chooseLanguage, chosenLanguage, chooseTheme, theme } from "../core/appearance.js";
import { html } from "../core/html.js";
import { N, t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { saveWork } from "../state/work.js";

const LANGUAGES = [["", N("Browser's language")], ["en", "English"], ["zh", "中文"]];
const THEMES = [["", N("System's colours")], ["light", N("Light")], ["dark", N("Dark")]];

function Choice({ label, options, value, onChoose }) {
  return html`<select aria-label=${label} value=${value} onChange=${(event) => onChoose(event.target.value)}>
    ${options.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === value}>${t(text)}</option>`)}
  </select>`;
}

export function Appearance() {
  const colours = useStore(theme);
  return html`<div class="appearance">
    <${Choice} label=${t("Language")} options=${LANGUAGES} value=${chosenLanguage} onChoose=${(value) => saveWork().then(() => chooseLanguage(value))} />
    <${Choice} label=${t("Colours")} options=${THEMES} value=${colours} onChoose=${chooseTheme} />
  </div>`;
}
