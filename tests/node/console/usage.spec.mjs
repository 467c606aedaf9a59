// My usage: what the key spent, as the ledger has it, and a refused call with its code.
import { api, assert, eventually, recorded, spec } from "./harness.mjs";

await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a boat", response_format: "url" });
assert.equal((await api("POST", "/v1/images/generations", { prompt: "a boat", model: "nothing" })).status, 404);
await recorded("model_not_found");

await spec("usage", "/console/usage", async (page, { looks, shot }) => {
  await page.locator(".uplot canvas").waitFor();
  const { body: me } = await api("GET", "/v1/darkroom/me");
  const table = page.getByRole("region", { name: "Usage" });
  await eventually(async () => assert.match(await table.getByRole("row").last().textContent(), new RegExp(`Total.*CNY\\s${Number(me.spent).toFixed(2)}`)));
  await page.getByRole("region", { name: "Calls" }).getByText("404 model_not_found").first().waitFor();
  const csv = await page.request.get(new URL(await page.getByRole("link", { name: "Download CSV" }).getAttribute("href"), page.url()).href);
  assert.match(csv.headers()["content-type"], /text\/csv/);
  const [head, ...rows] = (await csv.text()).trim().split(/\r?\n/);
  const amount = head.split(",").indexOf("amount");
  const sum = rows.reduce((total, row) => total + Number(row.split(",")[amount]), 0);
  assert.equal(sum.toFixed(4), Number(me.spent).toFixed(4));
  await looks();
  await shot();
});
