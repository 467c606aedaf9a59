// The end of a session in the middle of the work: calls wait until the person has signed in again, and are sent again.
import { createStore } from "./store.js";

// The roles, "key" or "operator", that a call waits for. The frame shows a card for them, over the page.
export const ended = createStore([]);

const signedIn = new Set();
const turns = { key: 0, operator: 0 }; // how often each has been signed in to
const waiting = new Map(); // role -> {promise, resolve, reject}

export const roleOf = (path) => (path.startsWith("/admin/") ? "operator" : "key");
export const turnOf = (role) => turns[role];

// Says who the browser is, so that only those who were signed in are asked again.
export function setRoles(roles) {
  signedIn.clear();
  for (const role of roles) signedIn.add(role);
}

// Waits for the sign-in that a refused call needs. False if there is nothing to wait for. Throws if the caller leaves.
export async function renewed(role, turn, signal) {
  if (!signedIn.has(role)) return false;
  if (turns[role] !== turn) return true; // it was signed in to while the call was on its way
  if (!waiting.has(role)) {
    waiting.set(role, Promise.withResolvers());
    ended.set((roles) => [...roles, role]);
  }
  signal?.throwIfAborted();
  const left = Promise.withResolvers();
  const leave = () => left.reject(signal.reason);
  signal?.addEventListener("abort", leave);
  try {
    return await Promise.race([waiting.get(role).promise, left.promise]);
  } finally {
    signal?.removeEventListener("abort", leave);
  }
}

// Ends the waiting: its calls are sent again, or fail if nobody signs in.
export function settle(role, isSignedIn) {
  if (isSignedIn) turns[role] += 1;
  waiting.get(role)?.resolve(isSignedIn);
  waiting.delete(role);
  ended.set((roles) => roles.filter((each) => each !== role));
}
