// The images that a person likes best: the server keeps which they are.
import { call } from "../core/api.js";
import { createStore } from "../core/store.js";

// What has changed since the lists were read, by image.
export const marks = createStore(new Map());

export const isFavourite = (image) => marks.get().get(image.id) ?? image.favourite ?? false;

export async function toggleFavourite(image) {
  const wanted = !isFavourite(image);
  await call(wanted ? "PUT" : "DELETE", `/v1/darkroom/results/${image.id}/favourite`);
  marks.set((all) => new Map(all).set(image.id, wanted));
}
