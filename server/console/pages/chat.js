// Chat: messages to a chat model, with images if it sees, the answer as it comes.
import { html } from "../core/html.js";
import { count, t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { Copy, Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { Markdown } from "../parts/markdown.js";
import { ChangeMessage, Past } from "../parts/past.js";
import { References } from "../parts/references.js";
import { askAgain, chat, deleteChat, nameOf, newChat, openChat, renameChat, sendChat, setChat, stopChat, takeBack, textOf } from "../state/chat.js";
import { chatModels, findModel, models } from "../state/models.js";

// `onAgain` is there for the last answer, `onChange` for the message before it.
function Turn({ message, live, onAgain, onChange }) {
  const mine = message.role === "user";
  return html`<div class=${`turn ${mine ? "mine" : ""}`} aria-label=${mine ? t("You") : t("Model")} role="group" aria-busy=${live}>
    ${Array.isArray(message.content) && message.content.filter((part) => part.image_url).map((part, index) => html`<img key=${index} src=${part.image_url.url} alt=${t("Reference {number}", { number: index + 1 })} />`)}
    ${mine ? textOf(message.content) : html`<${Markdown} text=${textOf(message.content) || (live ? "…" : "")} />`}
    ${!mine && !live && html`<div class="actions small"><${Copy} text=${() => textOf(message.content)}>${t("Copy")}</${Copy}>
      ${onAgain && html`<button type="button" class="plain" onClick=${onAgain}>${t("Ask again")}</button>`}</div>`}
  </div>
  ${onChange && html`<${ChangeMessage} onChange=${onChange} />`}`;
}

export default function Chat({ title }) {
  const all = chatModels(useStore(models));
  const { model: name, limit, system, temperature, text, images, messages, usage, past, busy, error } = useStore(chat);
  const model = findModel(all, name) ?? all[0];
  if (!model) return html`<${Page} title=${title}><${Empty}>${t("The catalog has no chat model.")}</${Empty}></${Page}>`;
  const set = (field) => (event) => setChat({ [field]: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    sendChat(model.id);
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && text.trim() && !busy) sendChat(model.id);
    if (event.key === "Escape") stopChat();
  };
  return html`<${Page} title=${title} actions=${html`<button type="button" disabled=${busy || !messages.length} onClick=${newChat}>${t("New chat")}</button>`}>
    <div class="two reverse">
      <div class="form">
        <section class="talk" role="log" aria-label=${t("Messages")}>
          ${messages.length === 0 && html`<${Empty}>${t("Say something to {model}.", { model: model.id })}</${Empty}>`}
          ${messages.map((message, index) => html`<${Turn} key=${index} message=${message} live=${busy && index === messages.length - 1} onAgain=${!busy && index > 0 && index === messages.length - 1 && (() => askAgain(model.id))} onChange=${!busy && index === messages.length - 2 && takeBack} />`)}
        </section>
        <form class="form" onSubmit=${submit} onKeyDown=${keys}>
          <${Field} as="textarea" id="message" rows="3" required label=${t("Message")} value=${text} onInput=${set("text")} hint=${t("Ctrl+Enter sends, Escape stops.")} />
          ${model.vision && html`<${References} sources=${images} most=${8} onChange=${(sources) => setChat({ images: sources })} />`}
          <div class="row">
            <${Select} id="model" label=${t("Model")} value=${model.id} options=${all.map((each) => each.id)} onChange=${(id) => setChat({ model: id })} />
            <${Field} id="max_tokens" type="number" min="1" label=${t("Most tokens")} value=${limit} onInput=${set("limit")} />
          </div>
          <details><summary>${t("Advanced")}</summary><div class="form">
            <${Field} as="textarea" id="system" rows="2" label=${t("Instructions for the model")} value=${system} onInput=${set("system")} />
            <${Field} id="temperature" type="number" min="0" max="2" step="any" label=${t("Temperature")} placeholder=${t("auto")} value=${temperature} onInput=${set("temperature")} />
          </div></details>
          <div class="actions">
            <button class="primary" disabled=${busy}>${t("Send")}</button>
            ${busy && html`<button type="button" onClick=${stopChat}>${t("Stop")}</button>`}
            ${usage && html`<span class="dim small">${t("{read} tokens read, {written} written", { read: count(usage.prompt_tokens), written: count(usage.completion_tokens) })}</span>`}
          </div>
          <${ErrorNote} error=${error} />
        </form>
      </div>
      <${Past} title=${t("Earlier chats")} note=${t("Chats stay in this browser until you sign out. For a model that draws, and to go on elsewhere, use Conversation.")} items=${past.map((one) => ({ id: one.id, name: nameOf(one) }))}
        busy=${busy} onOpen=${openChat} onRename=${renameChat} onDelete=${deleteChat} />
    </div>
  </${Page}>`;
}
