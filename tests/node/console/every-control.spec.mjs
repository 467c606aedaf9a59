// Every control of every page is used once, as it comes: what the page itself breaks then (an error, a rejection, a rule
// of its policy) fails the spec, whatever the control was for.
import { allEnded, api, assert, base, eventually, spec } from "./harness.mjs";

const EVERYONE = ["generate", "edit", "gallery", "compare", "chat", "conversation", "usage"];
const OPERATORS = ["queue", "models", "keys", "ledger", "calls", "moderation", "audit"];
// Pressed by the spec of their page: they change what the other specs need, lead to another page or take minutes.
const LEFT_OUT = /^(Swap|Undo the last swap|Save|New secret.*|Revoke.*|Draw the sheet|Recall all settings|Use as reference|With another seed|Draw again and compare.*|Enlarge.*|Edit|Delete.*|Cancel .*)$/;
const CONTROLS = ":is(button, input, select, textarea, summary, a[href]):visible";
const MOST = 80; // of a page
const ROWS = 2; // of lists, whose rows are alike

const drawn = await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a red boat", response_format: "url" });
const image = Buffer.from(await (await fetch(`${base}/cdn/${drawn.body.data[0].url.split("/").pop()}`)).arrayBuffer());
const TEXTS = { number: "1", date: "2026-01-02", range: "50", search: "boat" };

const described = (control) => control.evaluate((element) => ({
  tag: element.localName,
  type: element.type,
  name: (element.getAttribute("aria-label") ?? element.textContent).trim(),
  isOff: element.disabled || element.closest("[inert]") !== null,
  row: element.closest("tbody tr, figure.card, .past li") ? [...element.closest("tbody, .images, .past").children].findIndex((child) => child.contains(element)) : 0,
  isLocal: element.localName === "a" && !element.target && !element.hasAttribute("download"),
}));

// Uses one control, and says whether it was pressed.
async function use(page, control, { tag, type, name, isLocal }) {
  if (tag === "select") {
    const values = await control.evaluate((element) => [...element.options].map((option) => option.value));
    for (const value of [values.at(-1), values[0]]) await control.selectOption(value);
  } else if (tag === "textarea") await control.fill("a red boat");
  else if (type === "file") await control.setInputFiles({ name: "boat.png", mimeType: "image/png", buffer: image });
  else if (type === "checkbox" || type === "radio") await control.click({ force: true });
  else if (tag === "input") await control.fill(TEXTS[type] ?? "1");
  else if (tag === "a" && !isLocal) assert.equal((await page.request.get(await control.evaluate((element) => element.href))).status(), 200, name);
  else if (tag !== "a") {
    await control.click();
    return true;
  }
  return false;
}

// A control that the page has taken away meanwhile, as it does with Stop, is no longer to be used.
async function unlessGone(control, work) {
  try {
    return await work();
  } catch (error) {
    if (await control.evaluate((element) => element.isConnected)) throw error;
    return false;
  }
}

// Uses the controls below `root`, in their order. What opens a dialog goes on in it.
async function useAll(page, root, used, inDialog = false) {
  for (let index = 0; index < MOST; index += 1) {
    const control = (await root.locator(CONTROLS).elementHandles())[index];
    if (!control) return;
    const what = await described(control);
    if (what.isOff || what.row >= ROWS || LEFT_OUT.test(what.name)) continue;
    used.push(what.name);
    if (!(await unlessGone(control, () => use(page, control, what)))) continue;
    const dialog = page.getByRole("dialog");
    if (!inDialog && (await dialog.count())) {
      await useAll(page, dialog, used, true);
      if (await dialog.count()) await page.keyboard.press("Escape");
      await dialog.waitFor({ state: "detached" });
    }
  }
}

for (const name of [...EVERYONE, ...OPERATORS]) {
  await spec(`every control of ${name}`, `/console/${name}`, async (page) => {
    await page.waitForLoadState("networkidle");
    const used = [];
    await useAll(page, page.locator("main"), used);
    assert.ok(used.length > 0 || name === "queue", `${name} has no control`); // an empty queue has nothing to cancel
    assert.equal(page.url().split("?")[0], `${base}/console/${name}`);
    for (const state of ["queued", "running"]) {
      for (const job of (await api("GET", `/v1/images/jobs?state=${state}`)).body.data) await api("POST", `/v1/images/jobs/${job.id}/cancel`);
    }
    await allEnded();
    await eventually(async () => assert.equal(await page.locator("[aria-busy=true]").count(), 0));
  }, { refusals: [400, 404, 409] });
}
