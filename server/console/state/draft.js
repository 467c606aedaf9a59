// What the form of Generate holds. It stays while pages change, and other pages put settings into it.
import { navigate } from "../core/router.js";
import { createStore } from "../core/store.js";
import { can, findModel, imageModels, models } from "./models.js";

const EMPTY = {
  prompt: "", model: "", size: "1:1", quality: "", n: 1, seed: "", references: [],
  negative_prompt: "", steps: "", guidance: "", strength: "",
};
export const draft = createStore(EMPTY);
export const setDraft = (values) => draft.set((before) => ({ ...before, ...values }));

export const chosenModel = (values) => findModel(models.get(), values.model) ?? imageModels(models.get())[0] ?? null;

// The body of /v1/images/generations for this form.
export function bodyOf(values) {
  const model = chosenModel(values);
  const body = { model: model.id, prompt: values.prompt.trim(), size: values.size, n: Number(values.n), partial_images: 3 };
  if (values.quality && model.qualities.includes(values.quality)) body.quality = values.quality;
  for (const name of ["seed", "steps", "guidance", "strength"]) {
    if (values[name] !== "") body[name] = Number(values[name]);
  }
  if (values.negative_prompt && can(model, "negative_prompt")) body.negative_prompt = values.negative_prompt;
  if (values.references.length) body.image = values.references;
  return body;
}

const text = (value) => (value == null ? "" : String(value));

// The form as it was for a picture: everything that the server recorded of it.
export function recall(picture) {
  const used = picture.parameters ?? {};
  setDraft({
    ...EMPTY,
    prompt: picture.prompt ?? "",
    model: picture.model ?? "",
    size: used.size ?? picture.size ?? "1:1",
    quality: used.quality ?? "",
    seed: text(picture.seed),
    negative_prompt: used.negative_prompt ?? "",
    steps: text(used.steps),
    guidance: text(used.guidance),
    strength: text(used.strength),
    references: (picture.parents ?? []).map((name) => `${location.origin}/cdn/${name}`),
  });
  navigate("generate");
}

export function addReference(url) {
  draft.set((before) => ({ ...before, references: [...before.references, url] }));
}
