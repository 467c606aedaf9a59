// Moderation: a refusal with its evidence, and a trial that refuses nothing.
import { api, assert, eventually, spec } from "./harness.mjs";

const refused = await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a forbidden word" });
assert.equal(refused.body.error.code, "moderation_blocked");

await spec("moderation", "/console/moderation", async (page, { looks, shot }) => {
  await page.getByRole("region", { name: "Refusals" }).getByText("forbidden", { exact: false }).first().waitFor();
  await page.locator("#text").fill("a for\u200bbidden word");
  await page.getByRole("button", { name: "Try" }).click();
  await page.getByText("It would be refused.").waitFor();
  await shot();
  await page.locator("#text").fill("a red boat");
  await page.getByRole("button", { name: "Try" }).click();
  await page.getByText("It would pass.").waitFor();
  await page.getByRole("button", { name: "Reload the policy" }).click();
  await page.getByText("Reloaded.").waitFor();
  await eventually(async () => assert.match(await page.locator("#main").textContent(), /Rules: no-forbidden-things/));
  await looks();
});
