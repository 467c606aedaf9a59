// The console: its frame, and the page that the address names. Pages are loaded when they are opened.
import { get, Unreachable } from "./core/api.js";
import { html, render, useEffect, useErrorBoundary, useState } from "./core/html.js";
import { loadLanguage, N, t } from "./core/i18n.js";
import { Link, place } from "./core/router.js";
import { useStore } from "./core/store.js";
import { Appearance } from "./parts/appearance.js";
import { ErrorNote, Page } from "./parts/basics.js";
import { keepPage } from "./parts/incoming.js";
import { Shortcuts } from "./parts/shortcuts.js";
import { SIGNED_IN, SignedIn } from "./parts/provider.js";
import { SessionEnded, SignIn } from "./parts/sign-in.js";
import { Undo } from "./parts/undo.js";
import "./state/watch.js";
import { loadSession, session, signOut } from "./state/session.js";

const PAGES = {
  generate: { title: N("Generate"), load: () => import("./pages/generate.js") },
  edit: { title: N("Edit"), load: () => import("./pages/edit.js") },
  gallery: { title: N("Gallery"), load: () => import("./pages/gallery.js") },
  compare: { title: N("Compare"), load: () => import("./pages/compare.js") },
  chat: { title: N("Chat"), load: () => import("./pages/chat.js") },
  conversation: { title: N("Conversation"), load: () => import("./pages/conversation.js") },
  usage: { title: N("My usage"), load: () => import("./pages/usage.js") },
  queue: { title: N("Queue"), operator: true, load: () => import("./pages/queue.js") },
  models: { title: N("Models"), operator: true, load: () => import("./pages/models.js") },
  keys: { title: N("Keys"), operator: true, load: () => import("./pages/keys.js") },
  ledger: { title: N("Ledger"), operator: true, load: () => import("./pages/ledger.js") },
  calls: { title: N("Calls"), operator: true, load: () => import("./pages/calls.js") },
  moderation: { title: N("Moderation"), operator: true, load: () => import("./pages/moderation.js") },
  audit: { title: N("Audit"), operator: true, load: () => import("./pages/audit.js") },
};

function Lamp() {
  const [{ status, left, loading }, setState] = useState({ status: "starting", left: 0, loading: [] });
  useEffect(() => {
    const look = () => get("/console/state").then(setState, () => setState({ status: "away" }));
    look();
    const timer = setInterval(look, 5000);
    return () => clearInterval(timer);
  }, []);
  const starting = loading?.length ? t("loading {names}", { names: loading.join(", ") }) : left ? t("starting: {number} checkpoints left", { number: left }) : t("starting");
  const words = { starting, ready: t("ready"), draining: t("stopping"), away: t("no answer"), "read-only": t("read only") };
  return html`<span class=${`lamp ${status}`} aria-hidden="true"></span><span>Darkroom</span>
    <span class="small dim state" role="status">${words[status] ?? status}</span>`;
}

function Links({ of, current, onFollow }) {
  return Object.entries(PAGES).filter(([, page]) => Boolean(page.operator) === of).map(([name, page]) => html`
    <${Link} key=${name} page=${name} onClickCapture=${onFollow} aria-current=${name === current ? "page" : undefined}>${t(page.title)}</${Link}>`);
}

function Side({ current }) {
  const [open, setOpen] = useState(false);
  const { key, operator } = useStore(session);
  const close = () => setOpen(false);
  return html`<div class=${`side ${open ? "open" : ""}`}>
    <div class="brand"><${Lamp} /></div>
    <button type="button" class="menu" aria-expanded=${open} aria-controls="nav" onClick=${() => setOpen(!open)}>${t("Menu")}</button>
    <nav id="nav" aria-label=${t("Pages")}>
      <${Links} of=${false} current=${current} onFollow=${close} />
      <h2>${t("Operators")}</h2>
      <${Links} of=${true} current=${current} onFollow=${close} />
    </nav>
    <${Shortcuts} />
    <${Appearance} />
    ${(key || operator) && html`<div class="who">
      ${key && html`<span>${t("Key {name}", { name: key.name })}</span>`}
      ${operator && html`<span>${t("Operator")}</span>`}
      <button type="button" onClick=${signOut}>${t("Sign out")}</button>
    </div>`}
  </div>`;
}

function Body({ name, page }) {
  const [loaded, setLoaded] = useState({});
  const [broken] = useErrorBoundary((error) => console.error(error));
  const { key, operator } = useStore(session);
  useEffect(() => {
    page.load().then((module) => setLoaded({ name, View: module.default }), (error) => setLoaded({ name, error: error instanceof TypeError ? new Unreachable(error) : error }));
  }, [name]);
  const failed = broken ?? (loaded.name === name ? loaded.error : null);
  if (failed) return html`<${Page} title=${t(page.title)}><${ErrorNote} error=${failed} /></${Page}>`;
  if (!(page.operator ? operator : key)) return html`<${SignIn} title=${t(page.title)} operator=${Boolean(page.operator)} />`;
  return loaded.name === name ? html`<${loaded.View} title=${t(page.title)} />` : html`<${Page} title=${t(page.title)} />`;
}

function App() {
  const { page: name } = useStore(place);
  if (name === SIGNED_IN) return html`<div class="frame"><${SignedIn} /></div>`;
  const page = PAGES[name];
  return html`<a class="skip" href="#main">${t("Skip to the page")}</a>
    <div class="frame">
      <${Side} current=${name} />
      <${SessionEnded} />
      <${Undo} />
      ${page
        ? html`<${Body} key=${name} name=${name} page=${page} />`
        : html`<${Page} title=${t("No such page")}><p><${Link} page="generate">${t("Generate")}</${Link}></p></${Page}>`}
    </div>`;
}

async function start() {
  keepPage();
  const problems = await Promise.allSettled([loadLanguage(), loadSession()]);
  const failed = problems.find((problem) => problem.status === "rejected");
  const root = document.getElementById("app");
  render(failed ? html`<${Page} title="Darkroom"><${ErrorNote} error=${failed.reason} /></${Page}>` : html`<${App} />`, root);
}

start();
