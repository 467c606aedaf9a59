// What is known of an image, in words. What has no name here is shown by the server's.
import { html } from "../core/html.js";
import { N, t, told, when } from "../core/i18n.js";

const LABELS = {
  model: N("Model"), size: N("Size"), seed: N("Seed"), steps: N("Steps"), guidance: N("Guidance"), strength: N("Strength"),
  quality: N("Quality"), negative_prompt: N("Negative prompt"), scheduler: N("Scheduler"), loras: N("LoRAs"),
  controls: N("Controls"), checkpoint: N("Checkpoint"), n: N("Images of the call"), output_format: N("File format"),
  references: N("Reference images"), prompt_tokens: N("Tokens of the prompt"), adapters: N("Adapters"),
  batch: N("Batch"), drawn_by: N("Drawn by"), control_files: N("Files of the controls"), long_prompt: N("Long prompt"),
  "drawn_by.weights": N("Weights"), "drawn_by.device": N("Device"), "drawn_by.dtype": N("Number format"),
  "drawn_by.darkroom": N("Version"), masked: N("With a mask"), background: N("Background"), scale: N("Enlarged, times"),
  reproducible: N("The same image from its seed"), "drawn_by.seeds": N("What counts of a seed"),
  original_prompt: N("Prompt as it was sent"), enhanced_by: N("Prompt written by"), enhance_failed: N("Prompt not rewritten"),
  cut_from: N("Cut from"), mask_zoom: N("Small holes drawn large"), drawn_region: N("Part that was drawn"),
};
const FIRST = ["model", "size", "seed"];

export const labelOf = (name) => (LABELS[name] ? t(LABELS[name]) : name);

// A value of JSON as a person reads it.
export function shown(value) {
  if (typeof value === "boolean") return value ? t("yes") : t("no");
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (value !== null && typeof value === "object") return Object.entries(value).map(([name, each]) => `${name} ${shown(each)}`).join(", ");
  return String(value);
}

const isEmpty = (value) => value == null || value === "" || value === false || (typeof value === "object" && !Object.keys(value).length);

export const sizeOf = (image) => image.size ?? (image.width ? `${image.width}x${image.height}` : "–");

export function Facts({ image }) {
  const used = image.parameters ?? {};
  const all = { ...used, model: image.model, size: sizeOf(image), seed: image.seed, quality: used.quality && told(used.quality), n: used.n > 1 ? used.n : null, reproducible: used.reproducible === false ? t("no") : null };
  const names = [...FIRST, ...Object.keys(all).filter((name) => !FIRST.includes(name))].filter((name) => !isEmpty(all[name]));
  return html`<dl>${names.map((name) => html`<dt key=${name}>${labelOf(name)}</dt><dd>${shown(all[name])}</dd>`)}
    ${image.created_at && html`<dt>${t("Time")}</dt><dd>${when(image.created_at)}</dd>`}</dl>`;
}
