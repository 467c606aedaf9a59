// Models: what is served, an undo that fails without a change, a reload, the servers, and a swap with its progress, taken back.
import { api, asOperator, assert, eventually, spec } from "./harness.mjs";

const SWAPPED = "alpha-image-2-count";
const checkpointOf = async (model) => (await asOperator("GET", "/admin/checkpoints")).body.data.find((one) => one.models.includes(model)).name;

await spec("models", "/console/models", async (page, { looks, shot }) => {
  await page.getByRole("region", { name: "Checkpoints" }).getByRole("cell", { name: "starter-alpha", exact: true }).waitFor();
  await page.getByRole("button", { name: "Undo the last swap" }).click();
  await page.getByRole("alert").waitFor(); // there was none
  await page.getByRole("button", { name: "Reload the catalog" }).click();
  await page.getByText("No model has changed.").waitFor();
  await eventually(async () => assert.equal(await page.getByRole("alert").count(), 0));
  const actions = page.getByRole("region", { name: "Changes since the start" }).locator("tbody tr td:nth-child(3)");
  await eventually(async () => assert.deepEqual((await actions.allTextContents()).slice(0, 2), ["Reload the catalog", "Undo"]));
  const servers = page.getByRole("region", { name: "Servers and workers" }).locator("tbody tr");
  await eventually(async () => assert.deepEqual(await servers.locator("td:nth-child(-n+4)").allTextContents(), ["this one", "ready", "–", "image"]));
  await looks();
  await shot();

  const swap = page.getByRole("button", { name: "Swap", exact: true });
  await page.getByRole("combobox", { name: "Model" }).selectOption(SWAPPED);
  await page.locator("#checkpoint").selectOption("starter-beta");
  const progress = page.waitForFunction(() => document.querySelector("progress")); // looked for at each frame: it is there while the swap runs
  await swap.click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("listitem").getByText(SWAPPED).waitFor(); // what will change, before it does
  await looks("models, confirming a swap");
  await dialog.getByRole("button", { name: "Leave it" }).click();
  await dialog.waitFor({ state: "detached" });
  assert.equal(await checkpointOf(SWAPPED), "starter-alpha");
  await swap.click();
  await dialog.getByRole("button", { name: "Swap now" }).click();
  await progress;
  await eventually(async () => assert.equal((await actions.allTextContents())[0], "Swap")); // other specs' changes are below
  assert.equal(await checkpointOf(SWAPPED), "starter-beta");
  await page.getByRole("button", { name: "Undo the last swap" }).click();
  await eventually(async () => assert.equal((await actions.allTextContents())[0], "Undo"));
  assert.equal(await checkpointOf(SWAPPED), "starter-alpha");
  await eventually(async () => assert.equal(await page.getByRole("alert").count(), 0));
});

// A checkpoint of the disk, in service from the page; and out of it again, for the specs that follow.
await spec("models, one added", "/console/models", async (page, { looks, shot }) => {
  await page.getByRole("button", { name: "Inspect" }).click();
  await page.getByText(/of memory in bfloat16/).waitFor();
  await page.getByLabel("Name of the model").fill("my-beta-model");
  await page.getByLabel("Price of a call").fill("0.07");
  await looks("models, before one is added");
  await page.getByRole("button", { name: "Add it and serve it" }).click();
  await page.getByText("Added: my-beta-model").waitFor();
  const served = (await api("GET", "/v1/models")).body.data.find((model) => model.id === "my-beta-model");
  assert.equal(Number(served.price), 0.07);
  assert.equal(await checkpointOf("my-beta-model"), "my-beta");
  assert.equal((await asOperator("POST", "/admin/checkpoints/remove", { model: "my-beta-model" })).status, 200);
  assert.equal((await asOperator("POST", "/admin/reload")).status, 200);
});
