// Checkpoints side by side on one sheet, before one of them is served. For operators; nothing is charged.
import { call } from "../core/api.js";
import { html, useEffect, useState } from "../core/html.js";
import { t } from "../core/i18n.js";
import { toNumber } from "../core/json.js";
import { ErrorNote, Field } from "./basics.js";
import { useRoute, useWork } from "./loading.js";

export function Checkpoints() {
  const { data, error } = useRoute("/admin/checkpoints");
  const [chosen, setChosen] = useState([]);
  const [form, setForm] = useState({ prompts: "a red boat at sunset", seeds: "1, 2", size: "512x512" });
  const [sheet, setSheet] = useState(null);
  const work = useWork();
  useEffect(() => () => sheet && URL.revokeObjectURL(sheet), [sheet]);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const toggle = (name) => setChosen(chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name]);
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const body = {
        candidates: chosen.map((name) => ({ name })),
        prompts: form.prompts.split("\n").map((line) => line.trim()).filter(Boolean),
        seeds: form.seeds.split(",").map(toNumber),
        size: form.size,
      };
      const answer = await call("POST", "/admin/checkpoints/proof", body);
      setSheet(URL.createObjectURL(await answer.blob()));
    });
  };
  return html`<form class="panel form" onSubmit=${submit}>
    <h2>${t("Checkpoints side by side")}</h2>
    <p class="dim small">${t("For operators, also for checkpoints that no model names yet. Nothing is charged.")}</p>
    <fieldset class="actions"><legend>${t("Checkpoints")}</legend>
      ${(data?.data ?? []).map(({ name }) => html`<label key=${name}><input type="checkbox" name="candidates" value=${name} checked=${chosen.includes(name)} onChange=${() => toggle(name)} />${name}</label>`)}
    </fieldset>
    <${Field} as="textarea" id="prompts" rows="2" required label=${t("Prompts, one a line")} value=${form.prompts} onInput=${set("prompts")} />
    <div class="row">
      <${Field} id="seeds" required label=${t("Seeds, with commas")} value=${form.seeds} onInput=${set("seeds")} />
      <${Field} id="pixels" required pattern="[0-9]+x[0-9]+" label=${t("Size")} value=${form.size} onInput=${set("size")} />
    </div>
    <div class="actions"><button disabled=${work.busy || !chosen.length}>${work.busy ? t("Drawing") : t("Draw the sheet")}</button></div>
    <${ErrorNote} error=${error ?? work.error} />
    ${sheet && html`<img src=${sheet} alt=${t("The sheet: a column for each checkpoint")} style=${{ maxWidth: "100%" }} />
      <div class="actions"><a class="button" href=${sheet} download="proof.png">${t("Download")}</a></div>`}
  </form>`;
}
