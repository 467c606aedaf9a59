// Generate: by the keyboard alone, several at once, cancelled, refused, and found again after a reload.
import { allEnded, api, assert, base, eventually, spec } from "./harness.mjs";

const MODEL = "beta-2.5-flash-image-count";
const cards = (page) => page.locator("figure.card");

async function tabTo(page, id) {
  for (let presses = 0; presses < 60; presses += 1) {
    if ((await page.evaluate(() => document.activeElement.id || document.activeElement.value)) === id) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`Tab does not reach ${id}`);
}

await spec("generate", "/console", async (page, { looks, shot }) => {
  // the keyboard alone: prompt, model, ratio, generate
  await page.locator("#prompt").waitFor();
  await tabTo(page, "prompt");
  await page.keyboard.type("a red boat at sunset");
  await tabTo(page, "model");
  await page.keyboard.type("beta-2.5");
  await tabTo(page, "1:1");
  await page.keyboard.press("ArrowRight");
  await eventually(async () => assert.equal(await page.evaluate(() => document.activeElement.value), "3:2")); // focus stays on the ratios
  await page.keyboard.press("Control+Enter");
  await cards(page).waitFor();
  await eventually(async () => assert.match(await page.locator("figcaption").textContent(), /a red boat at sunset.*beta-2.5-flash-image-count · 1536x1024/));
  await eventually(async () => assert.match(await page.locator("#prompt-hint").textContent(), / \d+ of \d+ tokens\.$/)); // as the server counted
  await page.locator("#prompt").fill("a small boat ".repeat(100));
  assert.match(await page.locator("#prompt-hint").textContent(), / About 300 of \d+ tokens: the end may not be read\.$/);
  await cards(page).locator(".open").press("Enter");
  const shown = page.getByRole("dialog").getByRole("img");
  await shown.evaluate((image) => image.decode());
  assert.deepEqual(await shown.evaluate((image) => [image.naturalWidth, image.naturalHeight, image.alt]), [1536, 1024, "a red boat at sunset"]);
  await page.keyboard.press("Escape");

  // several at once, one of them cancelled: the cards are independent
  await page.locator("#model").selectOption("beta-3-pro-image-4k-count");
  await page.locator("#prompt").fill("a tall tower at night");
  await page.locator("#n").fill("4"); // too much to be done before it is cancelled
  const generate = page.getByRole("button", { name: /^Generate · CNY/ });
  await generate.click();
  await page.locator("#model").selectOption(MODEL);
  await page.locator("#prompt").fill("a yellow house in the snow");
  await page.locator("#n").fill("2");
  const cardsShown = ["a tall tower at night", "a yellow house in the snow"].map((name) => page.getByRole("article", { name }).getByRole("progressbar").waitFor());
  await generate.click();
  await Promise.all(cardsShown); // looked for before the click: the house may be drawn soon
  await page.locator(".job .shots img").first().waitFor(); // a preview of one of them
  await shot();
  await page.reload(); // the server knows what runs
  const found = page.getByRole("article", { name: "a tall tower at night" }); // with what was sent
  await found.getByRole("button", { name: "Cancel" }).click();
  await page.getByText("Cancelled. Nothing was charged.").waitFor();
  const cancelled = await api("GET", "/v1/images/jobs?state=cancelled");
  assert.ok(cancelled.body.data.length > 0);

  // earlier prompts by the arrow keys; what was typed stays
  const prompt = page.locator("#prompt");
  await prompt.fill("");
  for (const [key, text] of [["ArrowUp", "a yellow house in the snow"], ["ArrowUp", "a tall tower at night"], ["ArrowDown", "a yellow house in the snow"], ["ArrowDown", ""]]) {
    await prompt.press(key);
    await eventually(async () => assert.equal(await prompt.inputValue(), text));
  }
  await prompt.fill("a new idea");
  await prompt.press("Home");
  await prompt.press("ArrowUp");
  assert.equal(await prompt.inputValue(), "a new idea");

  // what the server refuses is said beside the field that it names, unfolded
  await page.locator("#model").selectOption(MODEL);
  await page.locator("#prompt").fill("a boat");
  await page.getByText("Advanced").click();
  await page.locator("#guidance").fill("9");
  await page.getByText("Advanced").click();
  await generate.click();
  await eventually(async () => assert.match(await page.getByRole("alert").textContent(), /without guidance/));
  await eventually(async () => assert.equal(await page.evaluate(() => document.activeElement.id), "guidance"));
  await eventually(async () => assert.ok(await page.locator("#guidance").isVisible()));
  await page.locator("#guidance").fill("");
  await looks();
  assert.ok(page.url().startsWith(`${base}/console`));
  await allEnded();
}, { refusals: [400] });
