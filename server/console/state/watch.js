// Tells who looks elsewhere how far the calls are: in the tab's title and, if the person wishes, by a notification.
import { t } from "../core/i18n.js";
import { createStore } from "../core/store.js";
import { setProgress } from "../core/title.js";
import { jobs, runs } from "./jobs.js";
import { keep } from "./work.js";

export const tells = createStore(false); // whether the person wishes to be notified
keep("tells", tells);

// Browsers notify over https and on this machine alone, and not if the person has refused.
export const canTell = () => isSecureContext && "Notification" in window && Notification.permission !== "denied";

export async function setTells(wanted) {
  tells.set(wanted && (await Notification.requestPermission()) === "granted");
}

// The share of the steps that are done, as a whole per cent.
function share(open) {
  const counted = open.map((job) => job.progress ?? { step: 0, steps: 1 });
  const done = counted.reduce((sum, { step, steps }) => sum + step / steps, 0);
  return Math.floor((100 * done) / open.length);
}

let before = [];

function look(all) {
  const open = all.filter(runs);
  const ended = all.filter((job) => !runs(job) && before.includes(job.id));
  before = open.map((job) => job.id);
  if (open.length) setProgress(`${share(open)} %`);
  else if (ended.length && document.hidden) setProgress("✓");
  else if (!document.hidden) setProgress("");
  if (!document.hidden || !tells.get() || !canTell() || Notification.permission !== "granted") return;
  for (const job of ended) {
    new Notification(job.state === "succeeded" ? t("The image is ready.") : t("The image was not drawn."), { body: job.request?.prompt ?? "", tag: job.id });
  }
}

jobs.subscribe(look);
document.addEventListener("visibilitychange", () => look(jobs.get()));
