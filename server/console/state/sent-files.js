// The files that this browser sent with its image calls, and the masks painted on them: the server keeps neither, and
// "Recall all settings" brings them back after a reload. They stay in this browser until its person signs out.
const MOST_CALLS = 50;
const DAY_MS = 86_400_000;
const KEEP_MS = 30 * DAY_MS;

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

const ended = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = () => reject(transaction.error);
});

// Runs `act` on the calls of the browser's database. A browser may forbid or fill it: then nothing is kept, which the
// form says where it is missed.
async function withCalls(mode, act) {
  let database;
  try {
    const opening = indexedDB.open("darkroom-sent-files", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("calls").createIndex("at", "at");
    database = await done(opening);
    const transaction = database.transaction("calls", mode);
    const complete = ended(transaction);
    const result = await act(transaction.objectStore("calls"));
    await complete;
    return result;
  } catch (error) {
    console.warn("The files of a call could not be kept or read.", error);
    return null;
  } finally {
    database?.close();
  }
}

// Deletes the oldest calls, above the number that is kept, and those that are too old.
async function trim(calls) {
  const keys = await done(calls.index("at").getAllKeys()); // oldest first
  const old = await done(calls.index("at").getAllKeys(IDBKeyRange.upperBound(Date.now() - KEEP_MS)));
  for (const key of new Set([...old, ...keys.slice(0, Math.max(0, keys.length - MOST_CALLS))])) calls.delete(key);
}

// Keeps the references (Files, data URIs, addresses of results) and the painted strokes of a call.
export const keepSent = (call, references, strokes) => withCalls("readwrite", async (calls) => {
  await done(calls.put({ at: Date.now(), references, strokes }, call));
  await trim(calls);
});

// Returns `{references, strokes}` of a call, or null if they are not here.
export const sentWith = async (call) => (await withCalls("readonly", (calls) => done(calls.get(call)))) ?? null;

export const deleteSent = () => withCalls("readwrite", (calls) => done(calls.clear()));
