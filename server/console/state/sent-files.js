// The files that this browser sent with its image calls, and the masks painted on them: the server keeps neither, and
// "Recall all settings" brings them back after a reload. They stay in this browser until its person signs out.
import { done, withRecords } from "../core/records.js";

const MOST_CALLS = 50;
const DAY_MS = 86_400_000;
const KEEP_MS = 30 * DAY_MS;

// Deletes the oldest calls, above the number that is kept, and those that are too old.
async function trim(calls) {
  const keys = await done(calls.index("at").getAllKeys()); // oldest first
  const old = await done(calls.index("at").getAllKeys(IDBKeyRange.upperBound(Date.now() - KEEP_MS)));
  for (const key of new Set([...old, ...keys.slice(0, Math.max(0, keys.length - MOST_CALLS))])) calls.delete(key);
}

// Keeps the references (Files, data URIs, addresses of results) and the painted strokes of a call.
export const keepSent = (call, references, strokes) => withRecords("calls", "readwrite", async (calls) => {
  await done(calls.put({ at: Date.now(), references, strokes }, call));
  await trim(calls);
});

// Returns `{references, strokes}` of a call, or null if they are not here.
export const sentWith = async (call) => (await withRecords("calls", "readonly", (calls) => done(calls.get(call)))) ?? null;

export const deleteSent = () => withRecords("calls", "readwrite", (calls) => done(calls.clear()));
