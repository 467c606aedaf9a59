// An image before and after, with a line between them that can be moved. The one before is cut as the server cuts it.
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { Field } from "./basics.js";

export function BeforeAfter({ before, after, id = "share", onLoad }) {
  const [share, setShare] = useState(50);
  return html`<div class="form">
    <div class="easel"><img src=${after} alt=${t("After")} onLoad=${onLoad} />
      <img src=${before} alt=${t("Before")} style=${{ position: "absolute", inset: 0, width: "100%", height: "100%", objectFit: "cover", clipPath: `inset(0 ${100 - share}% 0 0)` }} />
    </div>
    <${Field} id=${id} type="range" min="0" max="100" label=${t("Before and after")} value=${share} onInput=${(event) => setShare(Number(event.target.value))} />
  </div>`;
}
