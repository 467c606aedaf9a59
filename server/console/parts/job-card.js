// A call on its way: previews, place in the queue, steps, estimate, cancel; and one that failed, which can be sent again.
import { html, useLayoutEffect, useRef } from "../core/html.js";
import { duration, t } from "../core/i18n.js";
import { cancelJob, forgetJob, runs, startAgain } from "../state/jobs.js";
import { ErrorNote } from "./basics.js";
import { useWork } from "./loading.js";

function progressOf(job) {
  if (job.position > 0) return t("Waiting, place {position}", job);
  if (job.progress) return t("Step {step} of {steps}", job.progress);
  return job.state === "running" ? t("Running") : t("Queued");
}

function Shots({ job }) {
  const shots = Object.entries(job.previews);
  if (!shots.length) return html`<p class="waiting">${progressOf(job)}</p>`;
  return html`<div class="shots">${shots.map(([index, source]) => html`<img key=${index} src=${source} alt=${t("Preview {number}", { number: Number(index) + 1 })} />`)}</div>`;
}

function Failed({ job, onAgain }) {
  const work = useWork();
  const again = () => work.run(async () => onAgain?.(await startAgain(job)));
  return html`${job.state === "cancelled" ? html`<p class="dim">${job.error?.code === "cancelled_by_operator" ? t("An operator cancelled it. Nothing was charged.") : t("Cancelled. Nothing was charged.")}</p>` : html`<${ErrorNote} error=${job.error} stays />`}
    <${ErrorNote} error=${work.error} />
    <div class="actions">
      ${job.request && html`<button type="button" disabled=${work.busy} onClick=${again}>${t("Try again")}</button>`}
      <button type="button" onClick=${() => forgetJob(job.id)}>${t("Dismiss")}</button>
    </div>`;
}

// Brings the card of a call that a person has just begun into sight: on a phone the form fills the window.
export function useBegun(id) {
  const before = useRef(id);
  useLayoutEffect(() => {
    if (id !== before.current) document.getElementById(`job-${id}`)?.scrollIntoView({ block: "nearest" });
    before.current = id;
  }, [id]);
}

// `onAgain` gets the id of the call that takes the place of one that failed.
export function JobCard({ job, onAgain }) {
  const ended = !runs(job);
  const name = job.request?.prompt ?? job.model ?? job.id;
  return html`<article class="card job" aria-label=${name} data-state=${job.state} id=${`job-${job.id}`}>
    ${!ended && html`<${Shots} job=${job} />`}
    <div class="about">
      <span class="clamp">${name}</span>
      ${ended
        ? html`<${Failed} job=${job} onAgain=${onAgain} />`
        : html`<progress aria-label=${t("Steps")} max=${job.progress?.steps ?? 1} value=${job.progress?.step ?? 0}></progress>
          <span class="dim">${progressOf(job)}${job.estimated_s >= 0.5 && ` · ${t("about {time} left", { time: duration(job.estimated_s) })}`}</span>
          <div class="actions"><button type="button" onClick=${() => cancelJob(job.id)}>${t("Cancel")}</button></div>`}
    </div>
  </article>`;
}
