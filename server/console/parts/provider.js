// Signing in with an account of the house: the way to its provider, and the window that comes back from it.
import { BASE } from "../core/base.js";
import { html, useEffect } from "../core/html.js";
import { N, t } from "../core/i18n.js";
import { place } from "../core/router.js";
import { useStore } from "../core/store.js";
import { session } from "../state/session.js";
import { Page } from "./basics.js";

// Why nobody was signed in: `reason` of the server's SignInFailed.
const REASONS = {
  unreachable: N("The sign-in provider does not answer. Keys still work: use one, or try again in a moment."),
  late: N("That took too long, or it was begun in another window. Try again."),
  refused: N("The sign-in provider did not let you in. Try again."),
  invalid: N("The answer of the sign-in provider can't be trusted. The server's log says why."),
  no_group: N("Your account is in no group that may use this server. Ask who runs it."),
  ended: N("Your key here was revoked or has expired. Ask who runs this server."),
};
export const SIGNED_IN = "signed-in"; // the page of the window that comes back
const channel = new BroadcastChannel("darkroom-sign-in");

// The link to the provider, if the server has one; it comes back to the page `to`. With `beside` it opens a window of its
// own, so that the page stays as it is.
export function Provider({ to, beside }) {
  const { provider } = useStore(session);
  const reason = useStore(place).query.get("sign-in");
  if (!provider) return null;
  const path = `${BASE}/console/oidc/login?to=${to}`;
  const openBeside = (event) => open(path) && event.preventDefault(); // a window that may close itself; else the link's own
  return html`<a class="button primary" href=${path} ...${beside ? { target: "_blank", rel: "opener", onClick: openBeside } : {}}>${t("Sign in with {provider}", { provider })}</a>
    ${reason && !beside && html`<p class="error" role="alert">${t(REASONS[reason] ?? REASONS.invalid)}</p>`}
    <p class="dim">${t("Or with a key:")}</p>`;
}

// Does `then` when somebody has signed in in a window of this browser.
export function useSignedIn(then) {
  useEffect(() => {
    channel.addEventListener("message", then);
    return () => channel.removeEventListener("message", then);
  });
}

export function SignedIn() {
  const failed = useStore(place).query.has("sign-in");
  useEffect(() => {
    if (failed) return;
    channel.postMessage(SIGNED_IN);
    close(); // browsers may leave it open
  }, []);
  if (failed) return html`<${Page} title=${t("Sign in")}><div class="panel sign-in"><${Provider} to=${SIGNED_IN} /></div></${Page}>`;
  return html`<${Page} title=${t("You are signed in")}><p>${t("Close this window. The page that you came from goes on where it was.")}</p></${Page}>`;
}
