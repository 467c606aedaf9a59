// The work of every page: it outlives the page, and a reload, in this browser's records. Each belongs to a role, "key" or
// "operator", and comes back for that key alone.
import { done, withRecords } from "../core/records.js";

const SAVE_MS = 250;
const parts = new Map(); // name -> {store, role, empty, pack, restore}
const owners = { key: null, operator: null };
const late = new Map(); // name -> the timer that saves it
let leaving = false; // a browser ends the page's calls then, which is no failure to be kept

async function save(name) {
  clearTimeout(late.get(name));
  late.delete(name);
  const { store, role, pack } = parts.get(name);
  if (owners[role]) await withRecords("work", "readwrite", (work) => done(work.put({ owner: owners[role], value: pack(store.get()) }, name)));
}

// Keeps a store's value. `pack` leaves out what does not outlive the page, and `restore` takes what it returned.
export function keep(name, store, { role = "key", pack = (value) => value, restore = store.set } = {}) {
  parts.set(name, { store, role, empty: store.get(), pack, restore });
  store.subscribe(() => {
    if (owners[role] && !leaving && !late.has(name)) late.set(name, setTimeout(save, SAVE_MS, name));
  });
}

async function bringBack(name, owner) {
  const record = await withRecords("work", "readonly", (work) => done(work.get(name)));
  if (record?.owner === owner) parts.get(name).restore(record.value);
}

// Brings back the work of who has signed in. Who signs in again over a page goes on with what it shows.
export async function openWork({ key, operator }) {
  const found = { key: key?.id ?? null, operator: operator ? "operator" : null };
  const before = { ...owners };
  for (const role of Object.keys(owners)) owners[role] = found[role] ?? owners[role];
  for (const [name, { role }] of parts) { // in their order: what waits for a call comes after the calls
    if (!found[role] || before[role] === found[role]) continue;
    await (before[role] === null ? bringBack(name, found[role]) : save(name));
  }
}

// Ends the work of all, also in this browser's records.
export async function endWork() {
  for (const name of late.keys()) clearTimeout(late.get(name));
  late.clear();
  for (const role of Object.keys(owners)) owners[role] = null;
  for (const { store, empty } of parts.values()) store.set(empty);
  await withRecords("work", "readwrite", (work) => done(work.clear()));
}

// Saves what has changed and is not saved yet.
export const saveWork = () => Promise.all([...late.keys()].map(save));

addEventListener("pagehide", () => {
  leaving = true;
  saveWork();
});
addEventListener("pageshow", () => {
  leaving = false; // it was kept by the browser, and is shown again
});
