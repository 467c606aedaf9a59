// Bars by day, stacked by what `series` names. uPlot is loaded when a chart is shown.
import { theme } from "../core/appearance.js";
import { BASE } from "../core/base.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { day as dayName, t } from "../core/i18n.js";
import { ErrorNote } from "./basics.js";

const DAY_S = 86_400;
const COLOURS = ["#c0392b", "#2e86ab", "#d68910", "#2d8a5f", "#7d5ba6", "#607080", "#b5568b"];

// The heights of each series on top of those before it. `rows`: [{day, name, value}].
export function stack(rows) {
  const days = [...new Set(rows.map((row) => row.day))].sort();
  const names = [...new Set(rows.map((row) => row.name))].sort();
  const sums = days.map(() => 0);
  const heights = names.map((name) => days.map((day, index) => {
    sums[index] += rows.filter((row) => row.day === day && row.name === name).reduce((sum, row) => sum + row.value, 0);
    return sums[index];
  }));
  return { days, names, heights };
}

// uPlot takes numbers' formats by the browser's language when it is loaded, which some systems (LANG=C) name wrongly.
function nameLanguage() {
  try {
    Intl.getCanonicalLocales(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
  }
}

async function draw(root, rows, unit) {
  nameLanguage();
  const { default: UPlot } = await import("../vendor/uplot.js");
  if (!document.getElementById("uplot-style")) {
    document.head.append(Object.assign(document.createElement("link"), { id: "uplot-style", rel: "stylesheet", href: `${BASE}/console/vendor/uplot.css` }));
  }
  const { days, names, heights } = stack(rows);
  const times = days.map((day) => Date.parse(day) / 1000);
  const [first, last] = [Math.min(times[0], times.at(-1) - 6 * DAY_S), times.at(-1)]; // a week at least
  const style = getComputedStyle(root);
  const [ink, line] = [style.color, style.borderTopColor];
  const axis = { stroke: ink, grid: { stroke: line, width: 0.5 }, ticks: { stroke: line } };
  const own = (chart, index) => (heights[index][chart] - (index ? heights[index - 1][chart] : 0));
  // the highest stack is drawn first, so that each lower one covers its part of it
  const order = names.map((_, index) => index).reverse();
  return new UPlot({
    width: root.clientWidth - 32, height: 240,
    scales: { x: { time: true, range: () => [first - DAY_S, last + DAY_S] }, y: { range: (_, __, most) => [0, most * 1.1 || 1] } },
    tzDate: (seconds) => UPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"), // in which the days are
    axes: [{ ...axis, space: 80, incrs: [1, 2, 7, 14, 30, 91, 182, 365].map((days) => days * DAY_S), values: (_, ticks) => ticks.map(dayName) }, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => `${Number(tick.toFixed(4))}`) }],
    series: [{ label: t("Day"), value: (_, x) => (x == null ? "–" : new Date(x * 1000).toISOString().slice(0, 10)) }, ...order.map((index) => ({
      label: `${names[index]} (${unit})`, fill: COLOURS[index % COLOURS.length], stroke: COLOURS[index % COLOURS.length], width: 0, points: { show: false },
      paths: UPlot.paths.bars({ size: [0.7, 40] }),
      value: (_, __, ___, at) => (at == null ? "–" : Number(own(at, index).toFixed(4))),
    }))],
  }, [times, ...order.map((index) => heights[index])], root);
}

export function Chart({ label, rows, unit }) {
  const root = useRef();
  const [error, setError] = useState(null);
  useEffect(() => {
    let chart = null;
    let turn = 0;
    const show = async () => {
      const mine = ++turn;
      const drawn = await draw(root.current, rows, unit).catch(setError);
      if (!drawn) return undefined; // the page's table has the same numbers
      if (mine !== turn) return drawn.destroy(); // a newer one was begun meanwhile
      chart?.destroy();
      chart = drawn;
      return undefined;
    };
    show();
    const system = matchMedia("(prefers-color-scheme: dark)"); // a canvas does not follow the page's colours
    const unsubscribe = theme.subscribe(show);
    system.addEventListener("change", show);
    addEventListener("resize", show);
    return () => {
      turn += 1;
      unsubscribe();
      system.removeEventListener("change", show);
      removeEventListener("resize", show);
      chart?.destroy();
    };
  }, [JSON.stringify(rows), unit]);
  if (error) return html`<${ErrorNote} error=${error} stays />`;
  return html`<div class="panel chart" role="img" aria-label=${label} ref=${root}></div>`;
}
