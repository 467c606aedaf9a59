// A transparent background, chosen on Generate, on what is behind it.
import { assert, eventually, spec } from "./harness.mjs";

await spec("transparent", "/console/generate", async (page, { looks }) => {
  await page.locator("#model").selectOption("alpha-image-2-count");
  await page.locator("#background").waitFor({ state: "detached" }); // it draws no other than opaque ones
  await page.locator("#model").selectOption("alpha-image-3-count");
  await page.locator("#prompt").fill("a red boat");
  await page.locator("#background").selectOption("transparent");
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  assert.equal((await sent).postDataJSON().background, "transparent");
  assert.equal((await sent).headers().prefer, "respond-async");
  await page.getByRole("button", { name: "Open a red boat" }).click();
  const image = page.getByRole("dialog").getByRole("img");
  const seen = await image.evaluate(async (shown) => {
    await shown.decode();
    const canvas = new OffscreenCanvas(shown.naturalWidth, shown.naturalHeight);
    const context = canvas.getContext("2d");
    context.drawImage(shown, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const alpha = data.filter((_, index) => index % 4 === 3).sort();
    return { least: alpha.at(0), most: alpha.at(-1), behind: getComputedStyle(shown).backgroundImage };
  });
  assert.ok(seen.least < seen.most, JSON.stringify(seen));
  assert.match(seen.behind, /^repeating-conic-gradient/);
  await looks();
  await page.getByRole("button", { name: "Recall all settings" }).click();
  await eventually(async () => assert.equal(await page.locator("#background").inputValue(), "transparent"));
});
