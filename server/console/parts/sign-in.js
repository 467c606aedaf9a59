// Signing in: a card in place of a page before there is a key, and over a page whose session has ended.
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { ended } from "../core/session-end.js";
import { useStore } from "../core/store.js";
import { place } from "../core/router.js";
import { goOn, signIn, signInAgain, signOut } from "../state/session.js";
import { Dialog, ErrorNote, Field, Page } from "./basics.js";
import { useWork } from "./loading.js";
import { Provider, SIGNED_IN, useSignedIn } from "./provider.js";

function SignInForm({ id = "key", operator, onSecret, children, ...form }) {
  const [secret, setSecret] = useState("");
  const { busy, error, run } = useWork();
  const submit = (event) => {
    event.preventDefault();
    run(() => onSecret(secret.trim()));
  };
  return html`<form ...${form} onSubmit=${submit}>
    <h2>${operator ? t("Sign in as an operator") : t("Sign in with a key")}</h2>
    <p class="dim">${operator
      ? t("The admin key is in the file admin-key of the server's home.")
      : t("Who runs this server gives you one. A new server's own is in the file dev-key of its home.")}</p>
    <${Field} id=${id} type="password" label=${operator ? t("Admin key") : t("API key")} autocomplete="off"
      spellcheck="false" required value=${secret} onInput=${(event) => setSecret(event.target.value)} />
    <p class="small dim">${t("The browser keeps a session of twelve hours, never the key.")}</p>
    <div class="actions"><button class="primary" disabled=${busy}>${t("Sign in")}</button>${children}</div>
    <${ErrorNote} error=${error} />
  </form>`;
}

export function SignIn({ title, operator }) {
  const { page } = useStore(place);
  return html`<${Page} title=${title}><div class="panel sign-in">
    <${Provider} to=${page} />
    <${SignInForm} class="sign-in" operator=${operator} onSecret=${signIn} />
  </div></${Page}>`;
}

// The card that calls wait for. The page stays as it is below.
export function SessionEnded() {
  const [role] = useStore(ended);
  const leaving = useWork();
  useSignedIn(() => role && leaving.run(() => goOn(role)));
  if (!role) return null;
  return html`<${Dialog} key=${role} label=${t("Your session has ended")} stays>
    <div class="sign-in">
      <p><strong>${t("Your session has ended")}</strong></p>
      <p>${t("Nothing on this page is lost. Sign in, and it goes on where it was.")}</p>
      <${Provider} to=${SIGNED_IN} beside />
      <${SignInForm} id="session-key" class="sign-in" operator=${role === "operator"} onSecret=${(secret) => signInAgain(secret, role)}>
        <button type="button" disabled=${leaving.busy} onClick=${() => leaving.run(signOut)}>${t("Sign out")}</button>
      </${SignInForm}>
      <${ErrorNote} error=${leaving.error} />
    </div>
  </${Dialog}>`;
}
