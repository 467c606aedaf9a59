// An image with a brush over it. What is painted is what an edit may change.
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { Field } from "./basics.js";

// The paint has stripes, so that it is seen on any colour. It covers all that is below: what it is painted on is what an
// edit may change.
function paintOf(context) {
  const tile = new OffscreenCanvas(32, 32);
  const brush = tile.getContext("2d");
  brush.fillStyle = "#ffffff";
  brush.fillRect(0, 0, 32, 32);
  brush.strokeStyle = "#c2185b";
  brush.lineWidth = 11;
  for (const start of [-32, 0, 32]) {
    brush.moveTo(start - 8, 40);
    brush.lineTo(start + 40, -8);
  }
  brush.stroke();
  return context.createPattern(tile, "repeat");
}

function drawStroke(context, { points, size, erases }) {
  context.globalCompositeOperation = erases ? "destination-out" : "source-over";
  context.strokeStyle = paintOf(context);
  context.lineWidth = size;
  context.lineCap = context.lineJoin = "round";
  context.beginPath();
  context.moveTo(...points[0]);
  for (const point of points.length > 1 ? points.slice(1) : points) context.lineTo(...point);
  context.stroke();
}

function invert(context) {
  context.globalCompositeOperation = "xor";
  context.fillStyle = paintOf(context);
  context.fillRect(0, 0, context.canvas.width, context.canvas.height);
}

function redraw(canvas, steps) {
  const context = canvas.getContext("2d");
  context.globalCompositeOperation = "source-over";
  context.clearRect(0, 0, canvas.width, canvas.height);
  for (const step of steps) step === "invert" ? invert(context) : drawStroke(context, step);
}

// The mask as a PNG: opaque, and transparent where it was painted. Null if nothing was.
export async function maskOf(canvas, steps) {
  if (!steps.length) return null;
  const mask = document.createElement("canvas");
  mask.width = canvas.width;
  mask.height = canvas.height;
  const context = mask.getContext("2d");
  context.fillRect(0, 0, mask.width, mask.height);
  context.globalCompositeOperation = "destination-out";
  context.drawImage(canvas, 0, 0);
  return new Promise((resolve) => mask.toBlob(resolve, "image/png"));
}

// `steps` are strokes and inversions, so that the last one can be taken back.
export function Easel({ source, canvas, steps, onSteps, enabled }) {
  const [size, setSize] = useState(80);
  const [erases, setErases] = useState(false);
  const [tip, setTip] = useState(null); // where the brush is, in pixels of the page
  const [broken, setBroken] = useState(null); // the source that can't be shown
  const stroke = useRef(null);
  useLayoutEffect(() => { // a click draws before the next one can come
    if (canvas.current?.width) redraw(canvas.current, steps);
  }, [steps, source]);
  const fit = (event) => {
    canvas.current.width = event.target.naturalWidth;
    canvas.current.height = event.target.naturalHeight;
    redraw(canvas.current, steps);
  };
  const pointOf = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const scale = canvas.current.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  const tipAt = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const width = (Number(size) * box.width) / canvas.current.width;
    return { left: `${event.clientX - box.left - width / 2}px`, top: `${event.clientY - box.top - width / 2}px`, width: `${width}px`, height: `${width}px` };
  };
  const down = (event) => {
    if (!enabled) return;
    canvas.current.setPointerCapture(event.pointerId);
    stroke.current = { points: [pointOf(event)], size: Number(size), erases };
    redraw(canvas.current, [...steps, stroke.current]);
  };
  const move = (event) => {
    setTip(enabled ? tipAt(event) : null);
    if (!stroke.current) return;
    stroke.current.points.push(pointOf(event));
    redraw(canvas.current, [...steps, stroke.current]);
  };
  const up = () => {
    if (!stroke.current) return;
    onSteps([...steps, stroke.current]);
    stroke.current = null;
  };
  return html`<div class="form">
    ${enabled && html`<div class="row" role="group" aria-label=${t("Brush")}>
      <${Field} id="brush" type="range" min="8" max="300" label=${t("Brush size")} value=${size} onInput=${(event) => setSize(event.target.value)} />
      <button type="button" aria-pressed=${!erases} onClick=${() => setErases(false)}>${t("Brush")}</button>
      <button type="button" aria-pressed=${erases} onClick=${() => setErases(true)}>${t("Eraser")}</button>
      <button type="button" onClick=${() => onSteps([...steps, "invert"])}>${t("Invert")}</button>
      <button type="button" disabled=${!steps.length} onClick=${() => onSteps(steps.slice(0, -1))}>${t("Undo")}</button>
      <button type="button" disabled=${!steps.length} onClick=${() => onSteps([])}>${t("Clear")}</button>
    </div>`}
    ${broken === source && html`<p class="bad" role="alert">${t("This image can't be shown. It may have been deleted.")}</p>`}
    <div><div class="easel">
      <img src=${source} alt=${t("The image to edit")} onLoad=${fit} onError=${() => setBroken(source)} />
      <canvas ref=${canvas} role="img" aria-label=${t("The mask")} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up} onPointerLeave=${() => setTip(null)}></canvas>
      ${tip && html`<span class="tip" style=${tip}></span>`}
    </div></div>
  </div>`;
}
