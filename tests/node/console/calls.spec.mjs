// Calls: who failed, and why.
import { api, assert, eventually, recorded, spec } from "./harness.mjs";

await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a boat", size: "17x23" });
await recorded("invalid_value");

await spec("calls", "/console/calls", async (page, { looks, shot }) => {
  const rows = page.getByRole("region", { name: "Calls" }).locator("tbody tr");
  await rows.first().waitFor();
  const refused = page.waitForResponse((response) => response.url().includes("status=refused"));
  await page.locator("#status").selectOption("refused");
  await refused;
  const shown = rows.filter({ hasText: "400" });
  await shown.first().waitFor();
  await eventually(async () => assert.match(await shown.first().textContent(), /dev.*beta-2.5-flash-image-count/));
  await shown.first().getByRole("button").click();
  const details = page.getByRole("dialog", { name: "Call" });
  await details.getByText("code: invalid_value").waitFor();
  await looks("calls, one open");
  await details.getByRole("button", { name: "Close" }).click();
  await page.locator("#status").selectOption("");
  await rows.first().waitFor();
  await looks();
  await shot();
});
