// An image of the gallery, enlarged by the button under it.
import { assert, eventually, spec } from "./harness.mjs";

await spec("upscale", "/console/gallery", async (page, { looks }) => {
  await page.getByRole("button", { name: "Open a red boat" }).click();
  const button = page.getByRole("button", { name: /^Enlarge 2 times · CNY 0\.10/ });
  await button.waitFor();
  await looks();
  const sent = page.waitForRequest((request) => request.url().endsWith("/v1/images/upscale"));
  await button.click();
  assert.equal((await sent).postDataJSON().scale, 2);
  await page.waitForURL(/\/console\/generate/);
  await page.getByRole("button", { name: "Open a red boat" }).click();
  const shown = page.getByRole("dialog").getByRole("img");
  await eventually(async () => assert.deepEqual(await shown.first().evaluate((image) => [image.naturalWidth, image.naturalHeight]), [512, 512]));
});
