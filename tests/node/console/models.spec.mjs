// Models: what is served, and a swap that fails without a change.
import { assert, spec } from "./harness.mjs";

await spec("models", "/console/models", async (page, { looks, shot }) => {
  await page.getByRole("region", { name: "Checkpoints" }).getByRole("cell", { name: "starter-alpha", exact: true }).waitFor();
  await page.getByRole("button", { name: "Undo the last swap" }).click();
  await page.getByRole("alert").waitFor(); // there was none
  await page.getByRole("button", { name: "Reload the catalog" }).click();
  await page.getByText("No model has changed.").waitFor();
  assert.equal(await page.getByRole("alert").count(), 0);
  assert.deepEqual(await page.getByRole("region", { name: "Changes since the start" }).locator("tbody tr td:nth-child(3)").allTextContents().then((actions) => actions.slice(0, 2)), ["Reload the catalog", "Undo"]);
  await looks();
  await shot();
});
