// Pages by the path below /console.
import { BASE } from "./base.js";
import { html } from "./html.js";
import { createStore } from "./store.js";

const ROOT = `${BASE}/console`;
const read = () => ({
  page: location.pathname.slice(ROOT.length).replace(/^\/|\/$/g, "") || "generate",
  query: new URLSearchParams(location.search),
});

export const place = createStore(read());
addEventListener("popstate", () => place.set(read()));

export const pathOf = (page, values = {}) => {
  const text = new URLSearchParams(values).toString();
  return `${ROOT}/${page}${text ? `?${text}` : ""}`;
};

export function navigate(page, values = {}) {
  history.pushState(null, "", pathOf(page, values));
  place.set(read());
}

// Takes the query out of the address, when the page shows something else than it names.
export function forgetQuery() {
  if (!location.search) return;
  history.replaceState(null, "", location.pathname);
  place.set(read());
}

// A link to a page. New tabs and windows work as with any link.
export function Link({ page, values, children, ...attributes }) {
  const follow = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    navigate(page, values);
  };
  return html`<a href=${pathOf(page, values)} onClick=${follow} ...${attributes}>${children}</a>`;
}
