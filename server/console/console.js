"use strict";
// The console is an ordinary client: it calls /v1 and shows the results. Its session is a cookie that scripts can not read.

const $ = (id) => document.getElementById(id);
const state = { models: [], ratio: "auto", references: [], running: null };

function showMessage(text, bad = false) {
  $("message").textContent = text;
  $("message").className = bad ? "bad" : "";
}

async function signIn() {
  const key = $("key").value.trim();
  if (!key) return;
  const response = await fetch("/console/session", { method: "POST", headers: { Authorization: `Bearer ${key}` } });
  if (!response.ok) return showMessage((await response.json()).error.message, true);
  $("key").value = "";
  await loadModels();
}

async function signOut() {
  await fetch("/console/session", { method: "DELETE" });
  location.reload();
}

async function loadModels() {
  const response = await fetch("/v1/models");
  if (response.status === 401) return; // not signed in
  const body = await response.json();
  if (!response.ok) return showMessage(body.error.message, true);
  $("key").hidden = true;
  $("sign-out").hidden = false;
  state.models = body.data.filter((m) => m.tier); // chat models have no tier
  $("model").replaceChildren(...state.models.map((m) => new Option(`${m.id} · ${m.tier}`, m.id)));
  $("model").disabled = false;
  showMessage("");
  showModel();
}

const model = () => state.models.find((m) => m.id === $("model").value);

function showModel() {
  const selected = model();
  $("price").textContent = `· ${selected.price} CNY`;
  $("quality-row").hidden = selected.qualities.length === 0;
  $("quality").replaceChildren(...["auto", ...selected.qualities].map((q) => new Option(q, q)));
  if (!["auto", ...selected.ratios].includes(state.ratio)) state.ratio = "auto";
  $("ratios").replaceChildren(...["auto", ...selected.ratios].map(ratioButton));
}

function ratioButton(ratio) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", String(ratio === state.ratio));
  const shape = document.createElement("i");
  const [w, h] = ratio === "auto" ? [1, 1] : ratio.split(":").map(Number);
  shape.style.width = `${(28 * w) / Math.max(w, h)}px`;
  shape.style.height = `${(28 * h) / Math.max(w, h)}px`;
  if (ratio === "auto") shape.style.borderStyle = "dashed";
  button.append(shape, ratio);
  button.onclick = () => { state.ratio = ratio; showModel(); };
  return button;
}

function request() {
  const body = { model: $("model").value, prompt: $("prompt").value, n: Number($("n").value) };
  if (state.ratio !== "auto") body.size = state.ratio;
  if (!$("quality-row").hidden && $("quality").value !== "auto") body.quality = $("quality").value;
  if ($("negative_prompt").value) body.negative_prompt = $("negative_prompt").value;
  for (const field of ["seed", "steps", "guidance", "strength"]) {
    if ($(field).value !== "") body[field] = Number($(field).value);
  }
  if (state.references.length) body.image = state.references;
  return body;
}

async function generate(event) {
  event.preventDefault();
  const body = request();
  state.running = new AbortController();
  $("go").disabled = true;
  $("stop").hidden = false;
  const startedAt = performance.now();
  const timer = setInterval(() => showMessage(`Drawing … ${Math.round((performance.now() - startedAt) / 1000)} s`), 500);
  try {
    const response = await fetch("/v1/images/generations", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: state.running.signal,
    });
    const result = await response.json();
    if (!response.ok) {
      focusField(result.error.param);
      throw new Error(result.error.message);
    }
    showMessage(`Done in ${((performance.now() - startedAt) / 1000).toFixed(1)} s.`);
    result.data.forEach((item) => showPicture(item, body, result));
  } catch (error) {
    showMessage(error.name === "AbortError" ? "Stopped. Nothing is charged unless the picture was stored already." : error.message, error.name !== "AbortError");
  } finally {
    clearInterval(timer);
    $("go").disabled = false;
    $("stop").hidden = true;
  }
}

// Focus the field that the error names; it may be in closed details.
function focusField(name) {
  const field = name && $(name);
  if (!field) return;
  const details = field.closest("details");
  if (details) details.open = true;
  field.focus();
}

function showPicture(item, body, result) {
  document.querySelector(".empty")?.remove();
  const card = document.createElement("figure");
  card.className = "card";
  const image = new Image();
  image.src = item.url;
  image.alt = body.prompt;
  const caption = document.createElement("figcaption");
  const prompt = document.createElement("p");
  prompt.textContent = body.prompt;
  const details = document.createElement("small");
  details.textContent = `${result.parameters.model} · ${result.size} · seed ${item.seed} · ${result.parameters.steps} steps`;
  const actions = document.createElement("div");
  const link = document.createElement("a");
  link.href = item.url;
  link.textContent = "Download";
  link.download = "";
  actions.append(link, action("Use as reference", () => addReference(item.url)), action("Same seed", () => { $("seed").value = item.seed; }));
  caption.append(prompt, details, actions);
  card.append(image, caption);
  $("gallery").prepend(card);
}

function action(text, run) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.onclick = run;
  return button;
}

function addReference(source) {
  state.references.push(source);
  showReferences();
}

function showReferences() {
  $("references").replaceChildren(...state.references.map((source, i) => {
    const figure = document.createElement("figure");
    const image = new Image();
    image.src = source;
    image.alt = `reference ${i + 1}`;
    const remove = action("×", () => { state.references.splice(i, 1); showReferences(); });
    remove.setAttribute("aria-label", `remove reference ${i + 1}`);
    figure.append(image, remove);
    return figure;
  }));
}

function addFiles(files) {
  for (const file of files) {
    const reader = new FileReader();
    reader.onload = () => addReference(reader.result);
    reader.readAsDataURL(file);
  }
}

function copyCurl() {
  const body = JSON.stringify(request()).replaceAll("'", "'\\''");
  const line = `curl ${location.origin}/v1/images/generations -H "Authorization: Bearer $DARKROOM_KEY" -H 'Content-Type: application/json' -d '${body}'`;
  // browsers have no clipboard for pages over http, except from this machine
  const copying = navigator.clipboard?.writeText(line) ?? Promise.reject();
  copying.then(() => showMessage("Copied. Set DARKROOM_KEY in your shell."), () => showMessage(line));
}

async function pollServer() {
  try {
    const response = await fetch("/readyz");
    const body = await response.json();
    $("lamp").classList.toggle("ready", response.ok);
    $("lamp").title = body.status;
  } catch {
    $("lamp").classList.remove("ready");
    $("lamp").title = "no answer";
  }
}

localStorage.removeItem("darkroom-key"); // earlier versions kept the key there
$("key").onchange = signIn;
$("sign-out").onclick = signOut;
$("model").onchange = showModel;
$("form").onsubmit = generate;
$("stop").onclick = () => state.running?.abort();
$("curl").onclick = copyCurl;
$("files").onchange = () => { addFiles($("files").files); $("files").value = ""; };
$("drop").ondragover = (event) => { event.preventDefault(); $("drop").classList.add("over"); };
$("drop").ondragleave = () => $("drop").classList.remove("over");
$("drop").ondrop = (event) => { event.preventDefault(); $("drop").classList.remove("over"); addFiles(event.dataTransfer.files); };
loadModels();
pollServer();
setInterval(pollServer, 5000);
