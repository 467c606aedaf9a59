// Who the browser is: a key, an operator, both or nobody. The cookies are out of every script's reach.
import { call, get } from "../core/api.js";
import { createStore } from "../core/store.js";
import { loadModels, models } from "./models.js";

export const session = createStore({ key: null, operator: false });

export async function loadSession() {
  const found = await get("/console/session");
  if (found.key) await loadModels(); // pages that need a key need its models
  session.set(found);
}

export async function signIn(secret) {
  await call("POST", "/console/session", undefined, { headers: { Authorization: `Bearer ${secret}` } });
  await loadSession();
}

export async function signOut() {
  await call("DELETE", "/console/session");
  models.set([]);
  session.set({ key: null, operator: false });
}
