// A person's way through a piece of work: draw, edit a photo, edit the result twice, reload, recall the first, download
// all of it. No step leads nowhere, and the chain is known from its first image to its last.
import { api, assert, bytesOf, eventually, spec } from "./harness.mjs";

const MODEL = "beta-2.5-flash-image-count";
const made = await api("POST", "/v1/images/generations", { model: MODEL, prompt: "a green hill", seed: 4, size: "512x512", output_format: "jpeg", response_format: "b64_json" });
const photo = { name: "photo.jpg", mimeType: "image/jpeg", buffer: Buffer.concat([Buffer.from(made.body.data[0].b64_json, "base64"), Buffer.from([0])]) }; // no result has these bytes
const listed = async (words) => (await api("GET", `/v1/darkroom/results?q=${encodeURIComponent(words)}&order=asc`)).body.data;

const WAY = `way${Date.now()}`; // of this run alone

await spec("path", "/console", async (page, { wrong }) => {
  const begun = Date.now();
  const press = (name) => page.getByRole("button", { name }).click();
  const go = (name) => page.getByRole("link", { name, exact: true }).first().click();
  const dialog = page.getByRole("dialog");

  await page.locator("#model").selectOption(MODEL);
  await page.locator("#prompt").fill(`${WAY} begins`);
  await page.locator("#seed").fill("21");
  await press(/^Generate · CNY/);
  await page.getByRole("button", { name: `Open ${WAY} begins` }).waitFor();
  await eventually(async () => assert.equal(await page.title(), "Generate · Darkroom")); // nothing runs any more

  await go("Edit");
  await page.locator("#model").selectOption(MODEL);
  await page.locator("#image").setInputFiles(photo);
  const edit = async (words) => {
    await page.getByLabel("What to change").fill(words);
    await press(/^Generate · CNY/);
    await page.getByRole("button", { name: `Open ${words}` }).waitFor();
  };
  await edit(`${WAY} turns`);
  // the result, edited by the button of its large view, twice: each press leads to the image on Edit
  for (const [before, after] of [[`${WAY} turns`, `${WAY} climbs`], [`${WAY} climbs`, `${WAY} ends`]]) {
    const [image] = await listed(before);
    await page.getByRole("button", { name: `Open ${before}` }).click();
    await dialog.getByRole("button", { name: "Edit", exact: true }).click();
    await dialog.waitFor({ state: "detached" });
    await eventually(async () => assert.ok((await page.getByAltText("The image to edit").getAttribute("src")).endsWith(image.id)));
    await edit(after);
    const [next] = await listed(after);
    assert.deepEqual(next.parents, [image.id]);
  }

  await page.reload();
  await page.getByRole("button", { name: `Open ${WAY} ends` }).waitFor(); // the work is still here
  await go("Gallery");
  await page.getByLabel("Words of the prompt").fill(WAY);
  await page.keyboard.press("Enter");
  await eventually(async () => assert.equal(await page.locator("figure.card").count(), 4));
  await page.getByRole("button", { name: `Open ${WAY} ends` }).click(); // from the last image back to the photo's edit
  for (const words of [`${WAY} climbs`, `${WAY} turns`]) {
    await dialog.getByRole("button", { name: "Open what it was made from, 1" }).click();
    await dialog.getByText(words, { exact: true }).waitFor();
  }
  await page.keyboard.press("Escape");
  await press("Choose all");
  const download = page.waitForEvent("download");
  await press("Download as ZIP");
  const bytes = await bytesOf(download);
  assert.equal(bytes.readUInt16LE(bytes.length - 12), 4); // files
  for (const name of [`${WAY}-begins_seed21.png`, `${WAY}-ends`]) assert.ok(bytes.includes(name), name);

  await page.getByRole("button", { name: `Open ${WAY} begins` }).click();
  await page.keyboard.press("r");
  await eventually(async () => assert.deepEqual(await Promise.all(["#prompt", "#seed", "#model"].map((id) => page.locator(id).inputValue())), [`${WAY} begins`, "21", MODEL]));
  assert.deepEqual(wrong, []);
  console.log(`The path took ${((Date.now() - begun) / 1000).toFixed(1)} s.`);
});

await spec("keys", "/console", async (page, { looks }) => {
  await page.locator("#prompt").fill("?"); // is a letter here
  assert.equal(await page.getByRole("dialog").count(), 0);
  await page.locator("h1").focus();
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByText("This list").waitFor();
  await looks("shortcuts");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
});
