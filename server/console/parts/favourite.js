// The star of an image: whether it is a favourite.
import { html } from "../core/html.js";
import { t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { isFavourite, marks, toggleFavourite } from "../state/favourites.js";
import { ErrorNote } from "./basics.js";
import { useWork } from "./loading.js";

export function Favourite({ image, what, children }) {
  useStore(marks);
  const work = useWork();
  const is = isFavourite(image);
  return html`<button type="button" class="star" aria-pressed=${is} aria-label=${what && t("Favourite: {what}", { what })} title=${t("Favourite")} disabled=${work.busy} onClick=${() => work.run(() => toggleFavourite(image))}>
      <span aria-hidden="true">${is ? "★" : "☆"}</span>${children}</button>
    <${ErrorNote} error=${work.error} />`;
}
