// "Recall all settings": the form as it was for an image, from everything that the server recorded of it.
import { N } from "../core/i18n.js";
import { navigate } from "../core/router.js";
import { draft, edit, EMPTY, EMPTY_EDIT, referenceTo } from "./draft.js";
import { can, findModel, models } from "./models.js";
import { sentWith } from "./sent-files.js";

// The fields of a request for images. What else stands in an image's `parameters` is told and never sent.
// tests/unit/test_console_files.py compares them with the schema.
export const REQUEST_FIELDS = [
  "prompt", "model", "n", "size", "quality", "response_format", "output_format", "output_compression", "background",
  "moderation", "input_fidelity", "style", "stream", "partial_images", "user", "safety_identifier", "steps", "guidance",
  "strength", "negative_prompt", "scheduler", "loras", "long_prompt", "seed", "webhook", "num_inference_steps", "guidance_scale",
  "true_cfg_scale", "controls", "image", "images", "mask",
];

const isEmpty = (value) => value == null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);

// Whether the model did not read a prompt to its end.
const wasCut = (parameters) => Boolean(parameters?.prompt_tokens?.cut || parameters?.negative_prompt_tokens?.cut);

// What a request sent, by its fields. Those of its own images are in `references`, and the image has its own seed,
// so one image is asked for, whatever it was drawn with.
function sentFields(image) {
  const known = { ...image.parameters, prompt: image.prompt, model: image.model, size: image.parameters?.size ?? image.size, seed: image.seed };
  const sent = Object.entries(known).filter(([name, value]) => REQUEST_FIELDS.includes(name) && !isEmpty(value));
  const fields = Object.fromEntries(sent);
  delete fields.n;
  if (fields.output_format === "png") delete fields.output_format; // as without it
  if (fields.long_prompt === "tell" && !wasCut(image.parameters)) delete fields.long_prompt; // as without it
  return fields;
}

// Takes out what the model would refuse or what says the same twice, and tells what will be missing.
function sendable(fields, model, lost) {
  const lacks = (ability) => model?.supports.length > 0 && !can(model, ability);
  if (!model && fields.model) lost.push([N("The model {model} is not here any more."), { model: fields.model }]);
  for (const name of ["steps", "guidance", "negative_prompt"]) if (lacks(name)) delete fields[name];
  if (fields.steps !== undefined) delete fields.quality; // a quality is a number of steps
  if (lacks("transparent")) delete fields.background;
  if (fields.scheduler && model && !model.schedulers.includes(fields.scheduler)) {
    lost.push([N("The scheduler {name} can't be chosen by a request: the model's own is used."), { name: fields.scheduler }]);
    delete fields.scheduler;
  }
  for (const [name, strength] of Object.entries(fields.controls ?? {})) {
    lost.push([N("The control {name} (strength {strength}): its image was not kept."), { name, strength }]);
  }
  delete fields.controls;
}

// The references that are still to be had, in their order, and what is to be sent again.
function referencesOf(image, lost) {
  const references = image.references ?? (image.parents ?? []).map(referenceTo);
  const missing = (image.parameters?.references ?? references.length) - references.length;
  if (missing > 0 || (!references.length && image.parameters?.strength != null)) {
    lost.push([N("An image that this was made from was sent as a file, which the server does not keep: add it again.")]);
  }
  return references;
}

const text = (value) => (value == null ? "" : String(value));

// The draft of a form with these names, and in `also` what it has no control for.
function fill(empty, fields, lost, recalled) {
  const shown = Object.keys(empty).filter((name) => REQUEST_FIELDS.includes(name) && name !== "n");
  const also = Object.fromEntries(Object.entries(fields).filter(([name]) => !shown.includes(name)));
  const known = Object.fromEntries(shown.map((name) => [name, text(fields[name] ?? empty[name])]));
  return { ...empty, ...known, also, lost, recalled: recalled + 1 };
}

function recallEdit(image, fields, references, lost) {
  if (image.parameters?.masked && !image.strokes) lost.push([N("Its mask was not kept: paint it again.")]);
  const filled = fill(EMPTY_EDIT, fields, lost, edit.get().recalled);
  const before = edit.get();
  edit.set({ ...filled, image: references[0] ?? null, strokes: image.strokes ?? [], started: before.started });
  navigate("edit");
}

// Edits with one image go to Edit, all else to Generate. A page that did not send the call asks the browser for its files.
export async function recall(recorded) {
  const image = recorded.references ? recorded : { ...recorded, ...(await sentWith(recorded.call_id)) };
  const lost = [];
  const fields = sentFields(image);
  sendable(fields, findModel(models.get(), fields.model), lost);
  const references = referencesOf(image, lost);
  const count = image.parameters?.references ?? references.length;
  if (image.endpoint === "images.edits" && count <= 1) {
    recallEdit(image, fields, references, lost);
    return;
  }
  if (image.parameters?.masked) lost.push([N("Its mask was not kept: paint it again.")]);
  draft.set({ ...fill(EMPTY, fields, lost, draft.get().recalled), references });
  navigate("generate");
}
