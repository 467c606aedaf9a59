// What every spec of the console shares: a signed-in page, and what must hold for each page whatever it shows.
//   node SPEC.mjs BROWSER BASE_URL KEY ADMIN_KEY [FOLDER]    with FOLDER, screenshots are written there
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [endpoint, base, key, admin, folder] = process.argv.slice(2);
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = { desktop: { width: 1280, height: 860 }, phone: { width: 390, height: 844 } };
const WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const LIMIT_MS = Number(process.env.LIMIT_MS ?? 240_000); // only ends a spec that has failed

export { admin, assert, base, key, WIDTHS };

// Calls a route as a client with a key does.
export async function api(method, path, body, secret = key) {
  const headers = { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" };
  const response = await fetch(`${base}${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  return { status: response.status, body: text && JSON.parse(text) };
}

// The bytes of a file that the browser saves; it is on another machine as far as Playwright knows.
export async function bytesOf(download) {
  const chunks = [];
  for await (const chunk of await (await download).createReadStream()) chunks.push(chunk);
  return Buffer.concat(chunks);
}

// Ends the browser's sessions on the server. The browser is not told.
export async function endSessions(context) {
  const cookie = (await context.cookies()).map(({ name, value }) => `${name}=${value}`).join("; ");
  const answer = await fetch(`${base}/console/session`, { method: "DELETE", headers: { cookie } });
  assert.equal(answer.status, 204);
}

// Runs a check until its assertions hold: a click ends before the request that it causes, and the page changes later.
export async function eventually(check) {
  for (const end = Date.now() + LIMIT_MS; ; ) {
    try {
      return await check();
    } catch (error) {
      if (error.code !== "ERR_ASSERTION" || Date.now() > end) throw error;
    }
    await new Promise((next) => setTimeout(next, 50));
  }
}

// Waits until the log of calls has a refused one: its row is written after the answer.
export async function recorded(code) {
  await eventually(async () => assert.ok((await api("GET", "/v1/darkroom/calls")).body.data.some((call) => call.code === code)));
}

// Waits until no image call of the key runs: it would be charged while a later spec compares sums.
export async function allEnded() {
  const running = async (state) => (await api("GET", `/v1/images/jobs?state=${state}`)).body.data.map((job) => job.id);
  for (const state of ["queued", "running"]) await eventually(async () => assert.deepEqual(await running(state), []));
}

export const asOperator = (method, path, body) => api(method, path, body, admin);

async function violations(page, rules) {
  const options = rules ? { runOnly: { type: "rule", values: rules } } : { runOnly: { type: "tag", values: WCAG } };
  return page.evaluate(async (given) => {
    const { violations: found } = await window.axe.run(document, given);
    return found.map(({ id, nodes }) => ({ id, nodes: nodes.slice(0, 3).map((node) => `${node.html.slice(0, 200)} ${node.failureSummary}`) }));
  }, options);
}

// Both widths in both themes: nothing that axe objects to, and no page that scrolls sideways.
async function checkLooks(page, name) {
  await page.evaluate(AXE); // not a script element, which the page's policy would refuse
  for (const [width, size] of Object.entries(WIDTHS)) {
    await page.setViewportSize(size);
    for (const colorScheme of ["dark", "light"]) {
      await page.emulateMedia({ colorScheme });
      // the theme changes nothing but colours
      assert.deepEqual(await violations(page, colorScheme === "dark" ? ["color-contrast"] : null), [], `${name}, ${width}, ${colorScheme}`);
    }
    const [needed, there] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    assert.ok(needed <= there, `${name} is ${needed} px wide in ${there}`);
  }
  await page.setViewportSize(WIDTHS.desktop);
}

// In the page: waits for the images that are in sight, and shows paths of this machine as those of a server.
async function readyForImage() {
  const inSight = (image) => ((box) => box.bottom > 0 && box.top < innerHeight)(image.getBoundingClientRect());
  await Promise.all([...document.images].filter(inSight).map((image) => image.decode()));
  const found = [];
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode()); ) {
    if (!/^\/[^\s/]+\//.test(text.data)) continue;
    found.push(text.data);
    text.data = `/srv/darkroom/${text.data.split("/").at(-1)}`;
  }
  return found;
}

// In the page: the paths as they were.
function putBack(paths) {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode()); ) if (text.data.startsWith("/srv/darkroom/")) text.data = paths.shift();
}

// What goes wrong in a page while it is used: uncaught errors and rejections, breaches of its policy, and all that it or
// the browser writes as an error. `refusals` are what the spec asks for: statuses of answers, or errors of the network.
async function watch(page, refusals) {
  const wrong = [];
  const starts = refusals.map((refusal) => `Failed to load resource: ${typeof refusal === "number" ? `the server responded with a status of ${refusal} ` : refusal}`);
  const isMeant = (text) => starts.some((start) => text.startsWith(start));
  page.on("pageerror", (error) => wrong.push(String(error.stack)));
  page.on("console", (message) => message.type() === "error" && !isMeant(message.text()) && wrong.push(`${message.text()} ${message.location().url}`));
  await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) => console.error(`Content Security Policy: ${event.violatedDirective} ${event.blockedURI}`)));
  return wrong;
}

// An image of the page as it is in a window of this width, in this theme. Null without a folder.
async function picture(page, { width = "desktop", theme = "dark" }) {
  if (!folder) return null;
  await page.setViewportSize(WIDTHS[width]);
  await page.emulateMedia({ colorScheme: theme });
  const paths = await page.evaluate(readyForImage);
  const image = await page.screenshot();
  await page.evaluate(putBack, paths);
  await page.setViewportSize(WIDTHS.desktop);
  return image;
}

// Writes an image as WebP, which no screenshot is but the browser's canvas writes.
async function write(context, image, what, quality) {
  const page = await context.newPage();
  const data = await page.evaluate(async ([source, worth]) => {
    const bitmap = await createImageBitmap(await (await fetch(source)).blob());
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: "image/webp", quality: worth })).arrayBuffer());
    return Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  }, [`data:image/png;base64,${image.toString("base64")}`, quality]);
  writeFileSync(join(folder, `${what}.webp`), Buffer.from(data, "latin1"));
  await page.close();
}

// Writes images of pages side by side, smaller, as one.
async function sheet(context, what, taken) {
  if (!folder) return;
  const page = await context.newPage();
  const narrow = taken[0].width === "phone";
  await page.setViewportSize({ width: narrow ? 1280 : 1480, height: 800 });
  const figures = taken.map(({ name, image }) => `<figure><img src="data:image/png;base64,${image.toString("base64")}"><figcaption>${name}</figcaption></figure>`);
  await page.setContent(`<style>body{margin:8px;display:grid;grid-template-columns:repeat(${narrow ? 7 : 4},1fr);gap:8px;font:12px sans-serif}figure{margin:0}img{width:100%}</style>${figures.join("")}`);
  await write(context, await page.screenshot({ fullPage: true }), what, 0.5);
  await page.close();
}

// Runs a spec: body(page, { shot, looks }). Any error of the page, request elsewhere or breach of its policy fails it,
// but for the `refusals`, and requests that lead `elsewhere`.
export async function spec(name, path, body, { signedIn = true, locale = "en-US", refusals = [], elsewhere } = {}) {
  const browser = await chromium.connect(endpoint);
  const context = await browser.newContext({ viewport: WIDTHS.desktop, colorScheme: "light", reducedMotion: "reduce", locale });
  for (const secret of signedIn ? [key, admin] : []) {
    const answer = await context.request.post(`${base}/console/session`, { headers: { Authorization: `Bearer ${secret}` } });
    assert.equal(answer.status(), 204);
  }
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  const wrong = await watch(page, refusals);
  const requested = new Set();
  context.on("request", (request) => /^https?:/.test(request.url()) && requested.add(request.url()));

  const shot = async (what = name, how = {}) => folder && write(context, await picture(page, how), what, 0.6);
  await page.goto(`${base}${path}`);
  try {
    await body(page, { shot, picture: (how) => picture(page, how), sheet: (what, taken) => sheet(context, what, taken), context, wrong, looks: (what = name) => checkLooks(page, what) });
  } catch (error) {
    console.error(`The page said:\n${(await page.innerText("#main")).slice(-500)}\n${wrong.join("\n")}`);
    throw error;
  }
  assert.deepEqual(await page.evaluate(() => ({ ...localStorage, ...sessionStorage, cookie: document.cookie })), { cookie: "" });
  assert.deepEqual([...requested].filter((url) => !url.startsWith(`${base}/`) && !elsewhere?.test(url)), []);
  assert.deepEqual(wrong, []);
  await browser.close();
}
