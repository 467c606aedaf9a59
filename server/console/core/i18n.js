// English is in the sources; zh.json has the Chinese of each text. The person decides, else the browser.
import { chosenLanguage } from "./appearance.js";
import { BASE } from "./base.js";
import { createStore } from "./store.js";

export const language = createStore("en");
let texts = {};

export async function loadLanguage(wanted = chosenLanguage || navigator.language) {
  if (!wanted.toLowerCase().startsWith("zh")) return;
  const response = await fetch(`${BASE}/console/i18n/zh.json`);
  texts = await response.json();
  document.documentElement.lang = "zh-CN";
  language.set("zh-CN");
}

// The text in the browser's language, with {name} replaced by values.name.
export function t(text, values = {}) {
  return (texts[text] ?? text).replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

// Marks a text that is translated where it is shown.
export const N = (text) => text;

// Words of the server, which a page shows as they come.
const SERVER_WORDS = new Set([
  N("loaded"), N("loading"), N("missing"), N("in the catalog"), N("not in the catalog"), N("running"), N("succeeded"),
  N("failed"), N("asleep"), N("waiting"), N("inspecting"), N("hashing"), N("writing"), N("done"),
]);
const QUALITIES = { low: N("Low"), medium: N("Medium"), high: N("High"), xhigh: N("Very high"), max: N("Highest") };
const CPU = /^the CPU \((\d+) threads\)$/;

export function told(word) {
  const threads = CPU.exec(word)?.[1];
  if (threads) return t("the CPU ({threads} threads)", { threads });
  if (QUALITIES[word]) return t(QUALITIES[word]);
  return SERVER_WORDS.has(word) ? t(word) : word;
}

export function money(amount) {
  if (amount == null) return "–";
  const options = { style: "currency", currency: "CNY", currencyDisplay: "code", maximumFractionDigits: 4 };
  return new Intl.NumberFormat(language.get(), options).format(Number(amount));
}

// A day of the calendar, given as Unix seconds of its beginning in UTC.
export function day(seconds) {
  return new Intl.DateTimeFormat(language.get(), { month: "short", day: "numeric", timeZone: "UTC" }).format(seconds * 1000);
}

export const count = (number) => (number == null ? "–" : new Intl.NumberFormat(language.get()).format(number));

export function bytes(number) {
  if (number == null) return "–";
  const power = Math.min(4, Math.floor(Math.log(Math.max(1, number)) / Math.log(1024)));
  const unit = ["B", "KiB", "MiB", "GiB", "TiB"][power];
  return `${count(Number((number / 1024 ** power).toFixed(1)))} ${unit}`;
}

// Unix seconds as the day, where the person is.
export const date = (seconds) => new Intl.DateTimeFormat(language.get(), { dateStyle: "full" }).format(seconds * 1000);

// Unix seconds as date and time.
export function when(seconds) {
  if (seconds == null) return "–";
  return new Intl.DateTimeFormat(language.get(), { dateStyle: "medium", timeStyle: "short" }).format(seconds * 1000);
}

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  return seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}
