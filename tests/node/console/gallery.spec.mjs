// Gallery: kept after a reload, filtered, opened by arrows, every setting recalled, deleted.
import { api, assert, eventually, spec } from "./harness.mjs";

const MODEL = "beta-2.5-flash-image-count";
const draw = (prompt, more = {}) => api("POST", "/v1/images/generations", { model: MODEL, prompt, response_format: "url", ...more });

const first = await draw("a green tree on a hill", { size: "4:3", seed: 7 });
const second = await draw("a blue boat", { seed: 8, image: [first.body.data[0].url] });
assert.equal(second.status, 200);

await spec("gallery", "/console/gallery", async (page, { looks, shot }) => {
  const cards = page.locator("figure.card");
  await cards.first().waitFor();
  const before = await cards.count();
  await page.reload();
  await cards.first().waitFor();
  await eventually(async () => assert.equal(await cards.count(), before));
  const widths = await page.evaluate(() => Promise.all([...document.querySelectorAll("figure.card img")].slice(0, 2).map(async (image) => {
    await image.decode();
    return image.naturalWidth;
  })));
  assert.ok(Math.max(...widths) < 700, `thumbnails of ${widths} px`);
  await looks();
  await shot();

  await page.getByLabel("Words of the prompt").fill("green tree");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => [...document.querySelectorAll("figcaption")].every((caption) => caption.textContent.includes("green tree")));
  await cards.first().getByRole("button").click();
  const dialog = page.getByRole("dialog");
  await eventually(async () => assert.match(await dialog.textContent(), /Seed7/));
  await dialog.getByRole("button", { name: "Recall all settings" }).click();
  await eventually(async () => assert.equal(await page.locator("#prompt").inputValue(), "a green tree on a hill"));
  await eventually(async () => assert.equal(await page.locator("#seed").inputValue(), "7"));
  await eventually(async () => assert.equal(await page.locator("#model").inputValue(), MODEL));

  await page.getByRole("link", { name: "Gallery" }).click();
  await page.getByRole("button", { name: "Open a blue boat" }).first().click();
  await dialog.getByText("Made from", { exact: true }).waitFor(); // the picture that it was drawn from
  await dialog.evaluate((element) => Promise.all([...element.querySelectorAll("img")].map((image) => image.decode())));
  await shot("gallery-open", { theme: "light" });
  await page.keyboard.press("ArrowRight");
  await dialog.getByText("a green tree on a hill").waitFor();
  await page.keyboard.press("ArrowLeft");
  await dialog.getByText("a blue boat").waitFor();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await page.waitForFunction((left) => document.querySelectorAll("figure.card").length === left, before - 1);
});
