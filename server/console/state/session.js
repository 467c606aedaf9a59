// Who the browser is: a key, an operator, both or nobody. The cookies are out of every script's reach.
import { call, get } from "../core/api.js";
import { BASE } from "../core/base.js";
import { t } from "../core/i18n.js";
import { ended, setRoles, settle } from "../core/session-end.js";
import { createStore } from "../core/store.js";
import { stopChat } from "./chat.js";
import { stopComparison } from "./comparison.js";
import { deleteNow } from "./deletions.js";
import "./draft.js";
import "./grid.js";
import "./watch.js"; // all that is kept has to be there before it is brought back
import { loadModels, models } from "./models.js";
import { deleteSent } from "./sent-files.js";
import { leaveTalk } from "./talk.js";
import { endWork, openWork } from "./work.js";

export const session = createStore({ key: null, operator: false, provider: null });

function enter(found) {
  setRoles(["key", "operator"].filter((role) => found[role]));
  session.set(found);
}

const openSession = (secret) => call("POST", "/console/session", undefined, { headers: { Authorization: `Bearer ${secret}` } });

export async function loadSession() {
  const found = await get("/console/session");
  if (found.key) await loadModels(); // pages that need a key need its models
  enter(found);
  await openWork(found);
}

export async function signIn(secret) {
  await openSession(secret);
  await loadSession();
}

// Signs in again, over a page whose calls wait for `role`. Who else was signed in stays so until a call finds out.
export async function signInAgain(secret, role) {
  await openSession(secret);
  await goOn(role);
}

// Goes on after somebody has signed in again, in this window or in another.
export async function goOn(role) {
  const found = await get("/console/session");
  if (!found[role]) throw new Error(role === "operator" ? t("This is no admin key, and your account is no operator's.") : t("This is an admin key. An API key is needed here."));
  if (role === "key") await loadModels();
  const before = session.get();
  enter({ ...found, key: found.key ?? before.key, operator: found.operator || before.operator });
  await openWork(session.get());
  settle(role, true);
}

export async function signOut() {
  const { key, provider } = session.get();
  if (key && !ended.get().length) await deleteNow();
  await call("DELETE", "/console/session");
  enter({ key: null, operator: false, provider });
  for (const role of ["key", "operator"]) settle(role, false);
  models.set([]);
  for (const stop of [stopChat, stopComparison, leaveTalk]) stop();
  await endWork();
  await deleteSent();
  if (key?.person && provider) location.assign(`${BASE}/console/oidc/logout`); // there too
}
