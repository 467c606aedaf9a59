// What a page shows before there is a key: one card.
import { html, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { signIn } from "../state/session.js";
import { ErrorNote, Field, Page } from "./basics.js";
import { useWork } from "./loading.js";

export function SignIn({ title, operator }) {
  const [secret, setSecret] = useState("");
  const { busy, error, run } = useWork();
  const submit = (event) => {
    event.preventDefault();
    run(() => signIn(secret.trim()));
  };
  return html`<${Page} title=${title}>
    <form class="panel sign-in" onSubmit=${submit}>
      <h2>${operator ? t("Sign in as an operator") : t("Sign in with a key")}</h2>
      <p class="dim">${operator
        ? t("The admin key is in the file admin-key of the server's home.")
        : t("A new server's key is in the file dev-key of its home. `darkroom keys create` makes others.")}</p>
      <${Field} id="key" type="password" label=${operator ? t("Admin key") : t("API key")} autocomplete="off"
        spellcheck="false" required value=${secret} onInput=${(event) => setSecret(event.target.value)} />
      <p class="small dim">${t("The browser keeps a session of twelve hours, never the key.")}</p>
      <div class="actions"><button class="primary" disabled=${busy}>${t("Sign in")}</button></div>
      <${ErrorNote} error=${error} />
    </form>
  </${Page}>`;
}
