// Chat: /v1/chat/completions, streamed.
import { events } from "../core/api.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { count, t } from "../core/i18n.js";
import { useStore } from "../core/store.js";
import { Empty, ErrorNote, Field, Page, Select } from "../parts/basics.js";
import { useWork } from "../parts/loading.js";
import { References } from "../parts/references.js";
import { chatModels, findModel, models } from "../state/models.js";

function partsOf(text, images) {
  if (!images.length) return text;
  return [{ type: "text", text }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))];
}

const textOf = (content) => (typeof content === "string" ? content : content.find((part) => part.type === "text").text);

function Turn({ message, live }) {
  const mine = message.role === "user";
  return html`<div class=${`turn ${mine ? "mine" : ""}`} aria-label=${mine ? t("You") : t("Model")} role="group" aria-busy=${live}>
    ${Array.isArray(message.content) && message.content.filter((part) => part.image_url).map((part, index) => html`<img key=${index} src=${part.image_url.url} alt=${t("Reference {number}", { number: index + 1 })} />`)}
    ${textOf(message.content) || (live ? "…" : "")}
  </div>`;
}

export default function Chat({ title }) {
  const all = chatModels(useStore(models));
  const [name, setName] = useState("");
  const [limit, setLimit] = useState(400);
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [messages, setMessages] = useState([]);
  const [usage, setUsage] = useState(null);
  const stop = useRef(null);
  const work = useWork();
  useEffect(() => () => stop.current?.abort(), []);
  const model = findModel(all, name) ?? all[0];
  if (!model) return html`<${Page} title=${title}><${Empty}>${t("The catalog has no chat model.")}</${Empty}></${Page}>`;

  const send = () => work.run(async () => {
    const asked = [...messages, { role: "user", content: partsOf(text, images) }];
    setMessages([...asked, { role: "assistant", content: "" }]);
    stop.current = new AbortController();
    const body = { model: model.id, messages: asked, max_tokens: Number(limit), stream: true, stream_options: { include_usage: true } };
    let answer = "";
    try {
      for await (const chunk of events("POST", "/v1/chat/completions", body, { signal: stop.current.signal })) {
        if (chunk.error) throw Object.assign(new Error(chunk.error.message), chunk.error);
        answer += chunk.choices[0]?.delta.content ?? "";
        setMessages([...asked, { role: "assistant", content: answer }]);
        if (chunk.usage) setUsage(chunk.usage);
      }
    } catch (error) {
      if (!answer) setMessages(messages); // the text stays in the form, to be sent again
      if (error.name !== "AbortError") throw error;
      if (!answer) return;
    }
    setText("");
    setImages([]);
  });
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && text.trim() && !work.busy) send();
    if (event.key === "Escape") stop.current?.abort();
  };
  return html`<${Page} title=${title} actions=${html`<button type="button" disabled=${work.busy || !messages.length} onClick=${() => setMessages([])}>${t("New chat")}</button>`}>
    <section class="talk" role="log" aria-label=${t("Messages")}>
      ${messages.length === 0 && html`<${Empty}>${t("Say something to {model}.", { model: model.id })}</${Empty}>`}
      ${messages.map((message, index) => html`<${Turn} key=${index} message=${message} live=${work.busy && index === messages.length - 1} />`)}
    </section>
    <form class="form" onSubmit=${submit} onKeyDown=${keys}>
      <${Field} as="textarea" id="message" rows="3" required label=${t("Message")} value=${text} onInput=${(event) => setText(event.target.value)} hint=${t("Ctrl+Enter sends, Escape stops.")} />
      ${model.vision && html`<${References} sources=${images} most=${8} onChange=${setImages} />`}
      <div class="row">
        <${Select} id="model" label=${t("Model")} value=${model.id} options=${all.map((each) => each.id)} onChange=${setName} />
        <${Field} id="max_tokens" type="number" min="1" label=${t("Most tokens")} value=${limit} onInput=${(event) => setLimit(event.target.value)} />
      </div>
      <div class="actions">
        <button class="primary" disabled=${work.busy}>${t("Send")}</button>
        ${work.busy && html`<button type="button" onClick=${() => stop.current.abort()}>${t("Stop")}</button>`}
        ${usage && html`<span class="dim small">${t("{read} tokens read, {written} written", { read: count(usage.prompt_tokens), written: count(usage.completion_tokens) })}</span>`}
      </div>
      <${ErrorNote} error=${work.error} />
    </form>
  </${Page}>`;
}
