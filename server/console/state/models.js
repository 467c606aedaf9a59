// The catalog, as /v1/models shows it to the key.
import { get } from "../core/api.js";
import { createStore } from "../core/store.js";

export const models = createStore([]);

export async function loadModels() {
  models.set((await get("/v1/models")).data);
}

export const imageModels = (all) => all.filter((model) => model.type === "image");
export const chatModels = (all) => all.filter((model) => model.type === "chat");
export const findModel = (all, id) => all.find((model) => model.id === id) ?? null;
export const can = (model, ability) => Boolean(model?.supports.includes(ability));
