// Conversation: a chat model that draws, by /v1/responses. Every turn is stored, and may be continued again.
import { resultName, resultPath } from "../core/api.js";
import { html, useEffect, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { navigate } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Copy, Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { useList } from "../parts/loading.js";
import { Markdown } from "../parts/markdown.js";
import { ChangeMessage, Past } from "../parts/past.js";
import { References } from "../parts/references.js";
import { fileName, Viewer } from "../parts/viewer.js";
import { pathTo, tipOf } from "../state/conversation.js";
import { chatModels, drawingModels, findModel, models } from "../state/models.js";
import { deleteTalk, openTalk, renameTalk, say, sayOtherwise, setForm, setTip, startOver, stopTalk, talk } from "../state/talk.js";

const sourceOf = (image) => (image.startsWith("data:") ? image : resultPath(image));

function Turn({ turn, branches, onBranch, onBack, onOpen, onChange, isLast }) {
  const editable = turn.drawn.filter((image) => !image.startsWith("data:"));
  return html`<div class="turn mine" role="group" aria-label=${t("You")}>
      ${turn.images.map((source, index) => html`<img key=${index} src=${source.startsWith("data:") ? source : resultPath(source)} alt=${t("Reference {number}", { number: index + 1 })} />`)}
      ${turn.said}</div>
    ${onChange && html`<${ChangeMessage} onChange=${() => onChange(turn)} />`}
    <div class="turn" role="group" aria-label=${t("Model")} aria-busy=${turn.status === "in_progress"}>
      <${Markdown} text=${turn.text || (turn.status === "in_progress" && !turn.drawing ? "…" : "")} />
      ${turn.drawing && html`<p class="dim">${t("Drawing")}</p>`}
      ${turn.drawing?.preview && html`<img src=${turn.drawing.preview} alt=${t("Preview {number}", { number: 1 })} />`}
      ${turn.drawn.map((image) => html`<button type="button" key=${image} class="open" disabled=${image.startsWith("data:")} onClick=${() => onOpen(image)}><img src=${sourceOf(image)} alt=${t("Image for: {prompt}", { prompt: turn.said })} /></button>`)}
      <${ErrorNote} error=${turn.error} />
      ${turn.id && turn.status !== "in_progress" && html`<div class="actions small">
        ${!isLast && html`<button type="button" class="plain" onClick=${() => onBranch(turn.id)}>${t("Branch from here")}</button>`}
        ${branches.map((id, index) => html`<button key=${id} type="button" class="plain" onClick=${() => onBack(id)}>${t("Branch {number}", { number: index + 2 })}</button>`)}
        ${editable.map((image) => html`<button key=${image} type="button" class="plain" onClick=${() => navigate("edit", { image: resultName(image) })}>${t("Edit")}</button>
          <a key=${`file ${image}`} class="button plain" href=${resultPath(image)} download=${fileName({ id: resultName(image), prompt: turn.said })}>${t("Download")}</a>`)}
        ${turn.text && html`<${Copy} text=${() => turn.text}>${t("Copy")}</${Copy}>`}
      </div>`}
    </div>`;
}

export default function Conversation({ title }) {
  const catalog = useStore(models);
  const { turns, tip, live, form, error } = useStore(talk);
  const list = useList("/v1/darkroom/responses", { roots: true });
  const [open, setOpen] = useState(null); // the address of the image that is shown at large
  useEffect(() => {
    if (turns.length) list.reload();
  }, [turns.length]);
  const chats = chatModels(catalog);
  const model = findModel(chats, form.model) ?? chats[0];
  if (!model) return html`<${Page} title=${title}><${Empty}>${t("The catalog has no chat model.")}</${Empty}></${Page}>`;
  const busy = live !== null;
  const send = () => say(model.id, form.draws ? (form.image_model ? { model: form.image_model } : {}) : null);
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.said.trim() && !busy) send();
    if (event.key === "Escape" && busy) stopTalk();
  };
  const path = pathTo(turns, tip);
  const onPath = new Set(path.map((turn) => turn.id));
  const shown = path.flatMap((turn) => turn.drawn).filter((image) => !image.startsWith("data:"));
  const step = (by) => setOpen(shown[shown.indexOf(open) + by] ?? open);
  const rename = async (id, name) => {
    await renameTalk(id, name);
    list.reload();
  };
  const branchesOf = (turn) => turns.filter((other) => other.parent === turn.id && !onPath.has(other.id)).map((other) => tipOf(turns, other.id));
  return html`<${Page} title=${title} actions=${html`<button type="button" disabled=${busy} onClick=${startOver}>${t("New conversation")}</button>`}>
    <div class="two reverse">
      <div class="form">
        <section class="talk" role="log" aria-label=${t("Messages")}>
          ${path.length === 0 && !live && html`<${Empty}>${t("Ask {model} for an image, then for changes.", { model: model.id })}</${Empty}>`}
          ${path.map((turn) => html`<${Turn} key=${turn.id} turn=${turn} branches=${branchesOf(turn)} isLast=${turn.id === tip} onBranch=${setTip} onBack=${setTip} onOpen=${setOpen} onChange=${!busy && sayOtherwise} />`)}
          ${live && html`<${Turn} turn=${live} branches=${[]} onOpen=${setOpen} isLast=${true} />`}
        </section>
        <form class="form" onSubmit=${submit} onKeyDown=${keys}>
          <${Field} as="textarea" id="message" rows="3" required label=${t("Message")} value=${form.said} onInput=${(event) => setForm({ said: event.target.value })} hint=${t("Ctrl+Enter sends, Escape stops.")} />
          <${References} sources=${form.images} most=${4} onChange=${(images) => setForm({ images })} />
          <div class="row">
            <${Select} id="model" label=${t("Model")} value=${model.id} options=${chats.map((each) => each.id)} onChange=${(id) => setForm({ model: id })} />
            <${Select} id="image_model" label=${t("Draws with")} value=${form.image_model} options=${[["", t("the default")], ...drawingModels(catalog).map((each) => each.id)]} onChange=${(id) => setForm({ image_model: id })} />
          </div>
          <label for="draws"><input id="draws" type="checkbox" checked=${form.draws} onChange=${(event) => setForm({ draws: event.target.checked })} />${t("It may draw. A drawn image costs its model's price.")}</label>
          <div class="actions">
            <button class="primary" disabled=${busy}>${t("Send")}</button>
            ${busy && html`<button type="button" onClick=${stopTalk}>${t("Stop")}</button>`}
          </div>
          <${ErrorNote} error=${error} />
        </form>
      </div>
      <${Past} title=${t("Earlier conversations")} note=${t("Conversations draw, and the server keeps them. For a chat that only this browser knows, use Chat.")} items=${(list.rows ?? []).map((one) => ({ id: one.id, name: one.title || one.id }))} busy=${busy} error=${list.error}
        onOpen=${openTalk} onRename=${rename} onDelete=${deleteTalk}>${list.more && html`<button type="button" class="plain" onClick=${list.loadMore}>${t("Show more")}</button>`}</${Past}>
    </div>
    ${open && html`<${Viewer} listed=${{ id: resultName(open), url: open }} onClose=${() => setOpen(null)} onStep=${step} />`}
  </${Page}>`;
}
