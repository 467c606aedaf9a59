// "Recall all settings": the form as it was for an image, from everything that the server recorded of it.
import { get } from "../core/api.js";
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
  "strength", "negative_prompt", "scheduler", "loras", "long_prompt", "batch", "service_tier", "seed",
  "enhance", "webhook", "num_inference_steps", "guidance_scale",
  "true_cfg_scale", "cfg_scale", "denoising_strength", "prompt_strength", "width", "height", "aspect_ratio", "image_size",
  "num_images", "num_images_per_prompt", "num_outputs", "batch_size", "inpaint_full_res", "controls", "image", "images", "mask",
  "mask_zoom",
];

const isEmpty = (value) => value == null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);

// Whether the model did not read a prompt to its end.
const wasCut = (parameters) => Boolean(parameters?.prompt_tokens?.cut || parameters?.negative_prompt_tokens?.cut);

// Images that do not say how much of a seed counts are of a version that took its lowest 32 bits.
const seedOf = ({ seed, parameters }) =>
  seed == null || !parameters?.drawn_by?.darkroom || parameters.drawn_by.seeds ? seed : Number(BigInt.asUintN(32, BigInt(seed)));

// What a request sent, by its fields. Those of its own images are in `references`, and the image has its own seed,
// so one image is asked for, whatever it was drawn with.
function sentFields(image) {
  const known = { ...image.parameters, prompt: image.prompt, model: image.model, size: image.parameters?.size ?? image.size, seed: seedOf(image) };
  const sent = Object.entries(known).filter(([name, value]) => REQUEST_FIELDS.includes(name) && !isEmpty(value));
  const fields = Object.fromEntries(sent);
  delete fields.n;
  if (fields.batch === "merged") delete fields.batch; // as without it
  if (findModel(models.get(), fields.model)?.enhance) fields.enhance = false; // its prompt is the one that was drawn
  if (fields.output_format === "png") delete fields.output_format; // as without it
  if (fields.long_prompt === "tell" && !wasCut(image.parameters)) delete fields.long_prompt; // as without it
  return fields;
}

// Takes out what the model would refuse or what says the same twice, and tells what will be another way.
function sendable(fields, model, notes) {
  const lacks = (ability) => model?.supports.length > 0 && !can(model, ability);
  if (!model && fields.model) notes.push([N("The model {model} is not here any more."), { model: fields.model }]);
  for (const name of ["steps", "guidance", "negative_prompt"]) if (lacks(name)) delete fields[name];
  if (fields.steps !== undefined) delete fields.quality; // a quality is a number of steps
  if (lacks("transparent")) delete fields.background;
  if (fields.scheduler && model && !model.schedulers.includes(fields.scheduler)) {
    notes.push([N("The scheduler {name} can't be chosen by a request: the model's own is used."), { name: fields.scheduler }]);
    delete fields.scheduler;
  }
}

// Takes the controls out: their images are not to be had.
function withoutControls(fields, missing) {
  for (const [name, strength] of Object.entries(fields.controls ?? {})) {
    missing.push([N("The control {name} (strength {strength}): its image was not kept."), { name, strength }]);
  }
  delete fields.controls;
}

// The references that are still to be had, in their order, and what is to be sent again.
function referencesOf(image, missing) {
  const references = image.references ?? (image.parents ?? []).map(referenceTo);
  const lost = (image.parameters?.references ?? references.length) - references.length;
  if (lost > 0 || (!references.length && image.parameters?.strength != null)) {
    missing.push([N("An image that this was made from was sent as a file, which the server does not keep: add it again.")]);
  }
  return references;
}

const record = (image) => get(`/v1/darkroom/results/${image.id}`).catch((error) => {
  if (error.status !== 404) throw error;
  return {}; // it was deleted meanwhile: what the page knows of it
});

// What draws an image again, as far as it is known: the server's record, and the files that this browser sent. Returns
// {fields, references, strokes, notes, missing}: `notes` tell what will be another way, `missing` what is to be added.
export async function requestOf(listed) {
  const known = { ...listed, ...(listed.endpoint ? {} : await record(listed)) };
  const image = known.references ? known : { ...known, ...(await sentWith(known.call_id)) };
  const [notes, missing] = [[], []];
  const fields = sentFields(image);
  sendable(fields, findModel(models.get(), fields.model), notes);
  withoutControls(fields, missing);
  const references = referencesOf(image, missing);
  if (image.parameters?.masked && !image.strokes) missing.push([N("Its mask was not kept: paint it again.")]);
  if (image.parameters?.batch === "merged") {
    notes.push([N("It shared its computation with other images: drawn again, its lowest bits may differ. Images that are drawn alone, bit for bit, come out the same each time.")]);
  }
  const isEdit = image.endpoint === "images.edits" && (image.parameters?.references ?? references.length) <= 1;
  return { fields, references, strokes: image.strokes, notes, missing, isEdit };
}

const text = (value) => (value == null ? "" : String(value));

// The draft of a form with these names, and in `also` what it has no control for.
function fill(empty, fields, lost, recalled) {
  const adapters = findModel(models.get(), fields.model)?.adapters ?? [];
  const isShown = { n: false, loras: Object.keys(fields.loras ?? {}).every((name) => adapters.includes(name)) };
  const shown = Object.keys(empty).filter((name) => REQUEST_FIELDS.includes(name) && (isShown[name] ?? true));
  const also = Object.fromEntries(Object.entries(fields).filter(([name]) => !shown.includes(name)));
  const known = Object.fromEntries(shown.map((name) => [name, typeof empty[name] === "string" ? text(fields[name] ?? empty[name]) : fields[name] ?? empty[name]]));
  return { ...empty, ...known, also, lost, recalled: recalled + 1 };
}

// Fills the form: edits with one image go to Edit, all else to Generate. `changed` are fields to be other than they were.
export async function recall(image, changed = {}) {
  const { fields, references, strokes, notes, missing, isEdit } = await requestOf(image);
  const lost = [...notes, ...missing];
  if (isEdit) {
    const { started, recalled } = edit.get();
    edit.set({ ...fill(EMPTY_EDIT, { ...fields, ...changed }, lost, recalled), image: references[0] ?? null, strokes: strokes ?? [], started });
    navigate("edit");
    return;
  }
  draft.set({ ...fill(EMPTY, { ...fields, ...changed }, lost, draft.get().recalled), references });
  navigate("generate");
}
