// What was spent of a budget.
import { html } from "../core/html.js";
import { money, t } from "../core/i18n.js";

export function Spent({ one, spent = "spent", of = "budget" }) {
  if (one[of] == null) return money(one[spent]);
  const most = Number(one[of]);
  return html`${money(one[spent])} / ${money(one[of])}
    <progress max=${most || 1} value=${Number(one[spent])} aria-label=${t("Spent by {name}", one)}></progress>`;
}
