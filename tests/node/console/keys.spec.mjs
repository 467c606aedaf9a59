// Keys: made in the browser, used, changed, given another secret, revoked.
import { api, assert, eventually, spec } from "./harness.mjs";

const works = async (secret) => (await api("GET", "/v1/models", undefined, secret)).status === 200;

await spec("keys", "/console/keys", async (page, { looks, shot }) => {
  const secret = () => page.locator("#secret").textContent();
  await page.getByRole("button", { name: "New team" }).click();
  await page.locator("#team-name").fill("design");
  await page.locator("#team-budget").fill("500");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("button", { name: "design" }).waitFor();
  await page.getByRole("button", { name: "New key" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.locator("#name").fill("web shop");
  await dialog.getByLabel("Budget in CNY").fill("10.5");
  await dialog.getByLabel("Calls at once").fill("3");
  await dialog.getByLabel("Team").selectOption("design");
  await dialog.getByRole("button", { name: "Create" }).click();
  const first = await secret();
  assert.ok(await works(first));
  await page.getByRole("region", { name: "Keys" }).getByRole("cell", { name: "design", exact: true }).waitFor();
  await page.getByRole("region", { name: "Teams" }).getByRole("row", { name: /design\s*1/ }).waitFor();
  await looks();
  await shot();

  await page.getByRole("button", { name: "web shop" }).click();
  await eventually(async () => assert.equal(Number(await dialog.getByLabel("Budget in CNY").inputValue()), 10.5));
  await dialog.locator("#name").fill("shop");
  await dialog.getByLabel("Budget a month in CNY").fill("2");
  await looks("keys, dialog");
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "shop", exact: true }).click();
  await eventually(async () => assert.equal(await dialog.getByLabel("Calls at once").inputValue(), "3"));
  await dialog.getByRole("button", { name: /^New secret/ }).click();
  await page.waitForFunction((before) => document.querySelector("#secret")?.textContent !== before, first);
  const second = await secret();
  assert.ok(await works(second));
  assert.ok(await works(first)); // for a day
  await page.getByRole("button", { name: "shop", exact: true }).click();
  await dialog.getByRole("button", { name: "Revoke for ever" }).click();
  await dialog.getByRole("button", { name: "Revoke it: press again" }).click();
  await page.getByRole("cell", { name: "revoked" }).waitFor();
  assert.equal(await works(second), false);
});
