// Drawing an image again from all that the server recorded of it, to see whether it comes out the same.
import { get, readResult, resultName } from "../core/api.js";
import { t } from "../core/i18n.js";
import { readImage } from "../parts/incoming.js";
import { finished, startJob } from "./jobs.js";
import { requestOf } from "./recall.js";

const NOT_COMPARED = new Set(["n", "batch", "original_prompt", "enhanced_by", "enhance_failed"]);

async function pixelsOf(name) {
  const bitmap = await createImageBitmap(await readResult(name));
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

// How many pixels differ, and by how much at most; null if the sizes do.
function difference(first, second) {
  if (first.width !== second.width || first.height !== second.height) return null;
  let [pixels, most] = [0, 0];
  for (let place = 0; place < first.data.length; place += 4) {
    let here = 0;
    for (let band = place; band < place + 4; band += 1) here = Math.max(here, Math.abs(first.data[band] - second.data[band]));
    pixels += here > 0;
    most = Math.max(most, here);
  }
  return { pixels, most, of: first.data.length / 4 };
}

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// What two records say differently, as [name, before, now].
export function changes(first, second, prefix = "") {
  const names = [...new Set([...Object.keys(first), ...Object.keys(second)])].filter((name) => !NOT_COMPARED.has(name)).sort();
  return names.flatMap((name) => {
    const [old, now] = [first[name], second[name]];
    if (isTable(old) && isTable(now)) return changes(old, now, `${prefix}${name}.`);
    return String(old) === String(now) ? [] : [[`${prefix}${name}`, old, now]];
  });
}

const sendableAs = (reference) => (reference instanceof File ? readImage(reference) : reference);

// Draws it again, charged as any call. Returns {id, pixels, most, of, changes, wasMerged}; `pixels` are those that differ.
export async function reproduce(image) {
  const { fields, references, missing, strokes } = await requestOf(image);
  if (strokes?.length) missing.push([t("Its mask is painted on Edit: recall it, and generate there."), {}]);
  if (missing.length) throw new Error(missing.map(([text, values]) => t(text, values)).join(" "));
  const body = { ...fields, n: 1, batch: "exact", response_format: "url" };
  if (references.length) body.image = await Promise.all(references.map(sendableAs));
  const result = await finished(await startJob(body));
  const id = resultName(result.data[0].url);
  const [first, second, old, now] = await Promise.all([
    get(`/v1/darkroom/results/${image.id}`), get(`/v1/darkroom/results/${id}`), pixelsOf(image.id), pixelsOf(id),
  ]);
  const found = difference(old, now) ?? { pixels: null };
  return { id, ...found, changes: changes(first.parameters ?? {}, second.parameters ?? {}), wasMerged: first.parameters?.batch === "merged" };
}
