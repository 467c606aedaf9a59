// The catalog, as /v1/models shows it to the key.
import { get } from "../core/api.js";
import { createStore } from "../core/store.js";

export const models = createStore([]);

export async function loadModels() {
  models.set((await get("/v1/models")).data);
}

export const imageModels = (all) => all.filter((model) => model.type === "image");
// Those that draw from a prompt: an upscaler takes an image alone.
export const drawingModels = (all) => imageModels(all).filter((model) => model.architecture.input_modalities.includes("text"));
export const chatModels = (all) => all.filter((model) => model.type === "chat");
export const findModel = (all, id) => all.find((model) => model.id === id) ?? null;
// The model that enlarges an image of this size ("WIDTHxHEIGHT") so many times: its own if it can, else the cheapest.
export function enlargerOf(all, { model, size }, scale) {
  const [width, height] = (size ?? "").split("x").map(Number);
  const fitting = imageModels(all).filter((each) => can(each, "upscale") && width * height * scale ** 2 <= each.limits.max_area_px);
  return findModel(fitting, model) ?? fitting.sort((one, other) => Number(one.price) - Number(other.price))[0] ?? null;
}

export const can = (model, ability) => Boolean(model?.supports.includes(ability));
