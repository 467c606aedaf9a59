// Every page as it comes, in both languages: axe at both widths in both themes. With a folder, a sheet of images of all
// pages for each width is written there.
import { assert, base, eventually, spec, WIDTHS } from "./harness.mjs";

const PAGES = ["generate", "edit", "gallery", "compare", "chat", "conversation", "usage", "queue", "models", "keys", "ledger", "calls", "moderation", "audit"];
const ANSWER = "**Yes**: two ways.\n\n1. Say `a red boat`.\n2. Say the light:\n\n| time | word |\n|---|---|\n| evening | *sunset* |\n\n```\nsize: 16:9\n```";

// The chat's page is shown with an answer that has all of Markdown that models write.
async function chatted(page) {
  const events = [{ choices: [{ delta: { content: ANSWER } }] }].map((event) => `data: ${JSON.stringify(event)}\n\n`);
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: `${events.join("")}data: [DONE]\n\n` }));
  await page.locator("#message").fill("How do I ask for a boat?");
  await page.keyboard.press("Control+Enter");
  await page.locator(".prose table").waitFor();
}

async function edited(page) {
  const first = await page.evaluate(async (url) => (await (await fetch(url)).json()).data[0]?.id, `${base}/v1/darkroom/results?limit=1`);
  if (first) await page.goto(`${page.url()}?image=${first}`);
}

const FILLED = { chat: chatted, edit: edited };

for (const locale of ["en-US", "zh-CN"]) {
  await spec(`pages, ${locale}`, "/console/generate", async (page, { looks, picture, sheet }) => {
    const taken = [];
    for (const name of PAGES) {
      await page.goto(`${base}/console/${name}`);
      await page.locator("main h1").waitFor();
      await page.waitForLoadState("networkidle");
      await FILLED[name]?.(page);
      await looks(`${name}, ${locale}`);
      for (const width of Object.keys(WIDTHS)) for (const theme of ["light", "dark"]) taken.push({ name, width, theme, image: await picture({ width, theme }) });
    }
    if (locale === "en-US") for (const width of Object.keys(WIDTHS)) await sheet(`all-${width}`, taken.filter((each) => each.width === width));
  }, { locale });
}

await spec("a person's own language and colours", "/console/generate", async (page) => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.locator("#prompt").fill("a red boat");
  await page.getByLabel("Colours").selectOption("dark");
  const dark = await background();
  assert.notEqual(dark, light);
  await page.getByLabel("Language").selectOption("中文");
  await page.getByRole("heading", { name: "生成" }).waitFor();
  assert.equal(await background(), dark);
  await eventually(async () => assert.equal(await page.locator("#prompt").inputValue(), "a red boat"));
  await page.getByLabel("语言").selectOption("");
  await page.getByRole("heading", { name: "Generate" }).waitFor();
  await page.getByLabel("Colours").selectOption("");
  assert.equal(await background(), light);
});
