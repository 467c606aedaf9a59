"use strict";
// The console is a client like any other: it calls /v1 with the key and shows what comes back.

const $ = (id) => document.getElementById(id);
const state = { models: [], ratio: "auto", references: [], running: null };

const headers = () => ({ Authorization: `Bearer ${$("key").value.trim()}`, "Content-Type": "application/json" });

function say(text, bad = false) {
  $("message").textContent = text;
  $("message").className = bad ? "bad" : "";
}

async function loadModels() {
  if (!$("key").value.trim()) return;
  const answer = await fetch("/v1/models", { headers: headers() });
  const body = await answer.json();
  if (!answer.ok) return say(body.error.message, true);
  localStorage.setItem("darkroom-key", $("key").value.trim());
  state.models = body.data.filter((m) => m.tier); // the others chat
  $("model").replaceChildren(...state.models.map((m) => new Option(`${m.id} · ${m.tier}`, m.id)));
  $("model").disabled = false;
  say("");
  showModel();
}

const model = () => state.models.find((m) => m.id === $("model").value);

function showModel() {
  const chosen = model();
  $("price").textContent = `· ${chosen.price} CNY`;
  $("quality-row").hidden = chosen.qualities.length === 0;
  $("quality").replaceChildren(...["auto", ...chosen.qualities].map((q) => new Option(q, q)));
  if (!["auto", ...chosen.ratios].includes(state.ratio)) state.ratio = "auto";
  $("ratios").replaceChildren(...["auto", ...chosen.ratios].map(ratioButton));
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

async function draw(event) {
  event.preventDefault();
  const body = request();
  state.running = new AbortController();
  $("go").disabled = true;
  $("stop").hidden = false;
  const began = performance.now();
  const clock = setInterval(() => say(`Drawing … ${Math.round((performance.now() - began) / 1000)} s`), 500);
  try {
    const answer = await fetch("/v1/images/generations", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: state.running.signal,
    });
    const result = await answer.json();
    if (!answer.ok) {
      pointAt(result.error.param);
      throw new Error(result.error.message);
    }
    say(`Done in ${((performance.now() - began) / 1000).toFixed(1)} s.`);
    result.data.forEach((item) => showPicture(item, body, result));
  } catch (error) {
    say(error.name === "AbortError" ? "Stopped. Nothing is charged unless the picture was stored already." : error.message, error.name !== "AbortError");
  } finally {
    clearInterval(clock);
    $("go").disabled = false;
    $("stop").hidden = true;
  }
}

// The field that is refused may be folded away.
function pointAt(name) {
  const field = name && $(name);
  if (!field) return;
  const fold = field.closest("details");
  if (fold) fold.open = true;
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
  const facts = document.createElement("small");
  facts.textContent = `${result.parameters.model} · ${result.size} · seed ${item.seed} · ${result.parameters.steps} steps`;
  const actions = document.createElement("div");
  const link = document.createElement("a");
  link.href = item.url;
  link.textContent = "Download";
  link.download = "";
  actions.append(link, action("Use as reference", () => addReference(item.url)), action("Same seed", () => { $("seed").value = item.seed; }));
  caption.append(prompt, facts, actions);
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
  const copied = navigator.clipboard?.writeText(line) ?? Promise.reject();
  copied.then(() => say("Copied. Set DARKROOM_KEY in your shell."), () => say(line));
}

async function watchServer() {
  try {
    const answer = await fetch("/readyz");
    const body = await answer.json();
    $("lamp").classList.toggle("ready", answer.ok);
    $("lamp").title = answer.ok ? `ready on ${body.device}` : body.status;
  } catch {
    $("lamp").classList.remove("ready");
    $("lamp").title = "no answer";
  }
}

$("key").value = localStorage.getItem("darkroom-key") ?? "";
$("key").onchange = loadModels;
$("model").onchange = showModel;
$("form").onsubmit = draw;
$("stop").onclick = () => state.running?.abort();
$("curl").onclick = copyCurl;
$("files").onchange = () => { addFiles($("files").files); $("files").value = ""; };
$("drop").ondragover = (event) => { event.preventDefault(); $("drop").classList.add("over"); };
$("drop").ondragleave = () => $("drop").classList.remove("over");
$("drop").ondrop = (event) => { event.preventDefault(); $("drop").classList.remove("over"); addFiles(event.dataTransfer.files); };
loadModels();
watchServer();
setInterval(watchServer, 5000);
