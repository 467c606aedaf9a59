// Compare: the price before it starts, a sheet of two axes, and checkpoints side by side for operators.
import { asOperator, assert, eventually, spec } from "./harness.mjs";

await spec("compare", "/console/compare", async (page, { looks, shot }) => {
  await page.getByRole("textbox", { name: "Prompt", exact: true }).fill("a red boat at sunset");
  await page.getByRole("combobox", { name: "Model" }).selectOption("beta-2.5-flash-image-count");
  await page.getByRole("textbox", { name: "Values, with commas" }).fill("1, 2");
  await page.getByRole("combobox", { name: "Rows" }).selectOption("steps");
  await page.getByRole("textbox", { name: "Values, with commas" }).nth(1).fill("1, 2");
  const start = page.getByRole("button", { name: "Generate 4 images · CNY 0.40" });
  await start.click();
  await page.waitForFunction(() => document.querySelectorAll(".sheet td img").length === 4);
  await eventually(async () => assert.deepEqual(await page.locator(".sheet th").allTextContents(), ["Seed 1", "Seed 2", "Steps 1", "Steps 2"]));
  const urls = await page.locator(".sheet td a").evaluateAll((links) => links.map((link) => link.pathname));
  assert.equal(new Set(urls).size, 4);

  await page.getByRole("combobox", { name: "Rows" }).selectOption("seed");
  await page.getByText("Columns and rows must differ.").waitFor();
  await page.getByRole("combobox", { name: "Rows" }).selectOption("steps");
  await page.getByRole("textbox", { name: "Values, with commas" }).nth(1).fill("1, 2");
  await page.getByRole("checkbox", { name: "starter-alpha" }).check();
  await page.getByRole("checkbox", { name: "starter-beta" }).check();
  await page.getByLabel("Seeds, with commas").fill("1");
  await page.getByRole("textbox", { name: "Size" }).fill("256x256");
  await page.getByRole("button", { name: "Draw the sheet" }).click();
  await page.getByText(/^\d of 2 images drawn/).waitFor(); // it goes on when the page is left, and after a reload
  await page.getByRole("link", { name: "Gallery" }).click();
  await page.getByRole("searchbox").waitFor();
  await page.getByRole("link", { name: "Compare" }).click();
  const sheet = page.getByAltText("The sheet: a column for each checkpoint");
  await sheet.evaluate((image) => image.decode());
  assert.ok(await sheet.evaluate((image) => image.naturalWidth > 600));
  await looks();
  await page.evaluate(() => scrollTo(0, 0));
  await shot();
});

await spec("compare, stopped", "/console/compare", async (page) => {
  for (const name of ["starter-alpha", "starter-beta"]) await page.getByRole("checkbox", { name }).check();
  await page.getByLabel("Seeds, with commas").fill("1, 2, 3, 4, 5, 6, 7, 8");
  await page.getByRole("textbox", { name: "Size" }).fill("1024x1024");
  const begun = page.waitForResponse((response) => response.url().endsWith("/admin/checkpoints/proof"));
  await page.getByRole("button", { name: "Draw the sheet" }).click();
  const { id } = await (await begun).json();
  await page.getByRole("link", { name: "Queue" }).click();
  await page.getByRole("cell", { name: "Comparison" }).waitFor(); // where operators see all work
  await page.getByRole("link", { name: "Compare" }).click();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("The comparison was cancelled.").waitFor();
  await eventually(async () => assert.ok(!(await asOperator("GET", "/admin/jobs")).body.data.some((job) => job.id === id)));
});
