// The database of this browser: what its person sent and has begun, which the server does not keep. It is emptied when
// the person signs out.
const NAME = "darkroom-sent-files";
const VERSION = 3; // 1 had the calls alone, 2 other names in the work

export const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

const ended = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = () => reject(transaction.error);
});

function open() {
  const opening = indexedDB.open(NAME, VERSION);
  opening.onupgradeneeded = ({ oldVersion }) => {
    if (oldVersion < 1) opening.result.createObjectStore("calls").createIndex("at", "at");
    if (oldVersion === 2) opening.result.deleteObjectStore("work");
    opening.result.createObjectStore("work");
  };
  return done(opening);
}

// Runs `act` on the records of "calls" or "work". A browser may forbid or fill its database: then nothing is kept, which
// the form says where it is missed, and null is returned.
export async function withRecords(name, mode, act) {
  let database;
  try {
    database = await open();
    const transaction = database.transaction(name, mode);
    const complete = ended(transaction);
    const result = await act(transaction.objectStore(name));
    await complete;
    return result;
  } catch (error) {
    console.warn("The work of this page could not be kept or read.", error);
    return null;
  } finally {
    database?.close();
  }
}
