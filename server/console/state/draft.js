// What the forms of Generate and Edit hold. It outlives the pages, and other pages put settings into it.
import { resultPath } from "../core/api.js";
import { toNumber } from "../core/json.js";
import { createStore } from "../core/store.js";
import { can, drawingModels, findModel, models } from "./models.js";
import { keep } from "./work.js";

// `also` are fields of the request without a control here, `lost` says what a recall could not bring back, and
// `recalled` counts the recalls, so that a page shows what one has filled.
const RECALLED = { also: {}, lost: [], recalled: 0 };
export const EMPTY = {
  prompt: "", model: "", size: "1:1", quality: "", background: "", n: 1, seed: "", references: [],
  negative_prompt: "", steps: "", guidance: "", strength: "", batch: "", enhance: null, scheduler: "", loras: {}, controls: {}, ...RECALLED,
};
// `image` is a File or a result's URL, `strokes` its mask, `started` the edits so far.
export const EMPTY_EDIT = {
  prompt: "", model: "", size: "", quality: "", n: 1, seed: "", steps: "", guidance: "", strength: "", image: null, strokes: [], started: [], ...RECALLED,
};

export const draft = createStore(EMPTY);
export const edit = createStore(EMPTY_EDIT);
keep("draft", draft, { restore: (kept) => draft.set({ ...EMPTY, ...kept }) });
keep("edit", edit, { restore: (kept) => edit.set({ ...EMPTY_EDIT, ...kept }) });
export const setDraft = (values) => draft.set((before) => ({ ...before, ...values }));
export const setEdit = (values) => edit.set((before) => ({ ...before, ...values }));

export const chosenModel = (values) => findModel(models.get(), values.model) ?? drawingModels(models.get())[0] ?? null;
export const editors = (all) => drawingModels(all).filter((model) => model.max_references > 0);

// Without a choice, one that follows an instruction, in place of redrawing the image by the prompt.
const follows = (model) => can(model, "mask") && !can(model, "strength");
export const chosenEditor = (values, all = editors(models.get())) => findModel(all, values.model) ?? all.find(follows) ?? all[0];

const NUMBERS = ["seed", "steps", "guidance", "strength"];
const filled = (values, names) => Object.fromEntries(names.filter((name) => (values[name] ?? "") !== "").map((name) => [name, toNumber(values[name])]));

// Schedulers, adapters and controls, as far as the model has them.
function extrasOf({ scheduler, loras, controls }, model) {
  const weights = Object.entries(loras).filter(([name]) => model.adapters.includes(name)).map(([name, weight]) => [name, toNumber(weight)]);
  const images = Object.entries(controls).filter(([name]) => model.controls.some((card) => card.name === name))
    .map(([name, { image, strength }]) => [name, { image, ...(strength !== "" && { strength: toNumber(strength) }) }]);
  return {
    ...(model.schedulers.includes(scheduler) && { scheduler }),
    ...(weights.length > 0 && { loras: Object.fromEntries(weights) }),
    ...(images.length > 0 && { controls: Object.fromEntries(images) }),
  };
}

// What both forms have. A number of steps stands in place of a quality.
function sharedOf(values, model) {
  const quality = values.steps === "" && model.qualities.includes(values.quality) ? { quality: values.quality } : {};
  return { ...values.also, model: model.id, prompt: values.prompt.trim(), n: Number(values.n), ...filled(values, NUMBERS), ...quality, response_format: "url" };
}

// The body of /v1/images/generations for this form. A strength is of a reference image.
export function bodyOf(values) {
  const model = chosenModel(values);
  const body = { ...sharedOf(values, model), size: values.size };
  if (values.batch) body.batch = values.batch;
  if (values.enhance != null) body.enhance = values.enhance;
  Object.assign(body, extrasOf(values, model));
  if (values.background && can(model, "transparent")) body.background = values.background;
  if (values.negative_prompt && can(model, "negative_prompt")) body.negative_prompt = values.negative_prompt;
  if (values.references.length) body.image = values.references;
  else delete body.strength;
  return body;
}

// The fields of /v1/images/edits, without its files.
export const editFieldsOf = (values) => ({ ...sharedOf(values, chosenEditor(values)), ...(values.size && { size: values.size }) });

export const addReference = (url) => draft.set((before) => ({ ...before, references: [...before.references, url] }));

// A result as the reference of a call: its address here.
export const referenceTo = (url) => `${location.origin}${resultPath(url)}`;

const blobs = new WeakMap(); // File -> its URL in this page
// What an <img> shows of a reference: a File, a data URI or a result.
export function sourceOf(reference) {
  if (!(reference instanceof File)) return reference.startsWith("data:") ? reference : resultPath(reference);
  if (!blobs.has(reference)) blobs.set(reference, URL.createObjectURL(reference));
  return blobs.get(reference);
}
