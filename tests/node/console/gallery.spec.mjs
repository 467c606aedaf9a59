// Gallery: kept after a reload, filtered, opened by arrows, every setting recalled, deleted.
import { api, assert, base, eventually, spec } from "./harness.mjs";

const MODEL = "beta-2.5-flash-image-count";
const draw = (prompt, more = {}) => api("POST", "/v1/images/generations", { model: MODEL, prompt, response_format: "url", ...more });

const first = await draw("a green tree on a hill", { size: "4:3", seed: 7 });
const second = await draw("a blue boat", { seed: 8, image: [first.body.data[0].url] });
assert.equal(second.status, 200);

await spec("gallery", "/console/gallery", async (page, { looks, shot }) => {
  const cards = page.locator("figure.card");
  await cards.first().waitFor();
  const before = await cards.count();
  await page.reload();
  await cards.first().waitFor();
  await eventually(async () => assert.equal(await cards.count(), before));
  const widths = await page.evaluate(() => Promise.all([...document.querySelectorAll("figure.card img")].slice(0, 2).map(async (image) => {
    await image.decode();
    return image.naturalWidth;
  })));
  assert.ok(Math.max(...widths) < 700, `thumbnails of ${widths} px`);
  await looks();
  await shot();

  await page.getByLabel("Words of the prompt").fill("green tree");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => [...document.querySelectorAll("figcaption")].every((caption) => caption.textContent.includes("green tree")));
  await cards.first().getByRole("button").click();
  const dialog = page.getByRole("dialog");
  await eventually(async () => assert.match(await dialog.textContent(), /Seed7/));
  await dialog.getByRole("button", { name: "Recall all settings" }).click();
  await eventually(async () => assert.equal(await page.locator("#prompt").inputValue(), "a green tree on a hill"));
  await eventually(async () => assert.equal(await page.locator("#seed").inputValue(), "7"));
  await eventually(async () => assert.equal(await page.locator("#model").inputValue(), MODEL));

  await page.getByRole("link", { name: "Gallery" }).click();
  await page.getByRole("button", { name: "Open a blue boat" }).first().click();
  await dialog.getByText("Made from", { exact: true }).waitFor(); // the image that it was drawn from
  await dialog.evaluate((element) => Promise.all([...element.querySelectorAll("img")].map((image) => image.decode())));
  await shot("gallery-open", { theme: "light" });
  await page.keyboard.press("ArrowRight");
  await dialog.getByText("a green tree on a hill").waitFor();
  await page.keyboard.press("ArrowLeft");
  await dialog.getByText("a blue boat").waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
});

const doomed = await draw("a doomed tower", { seed: 9 });
const name = doomed.body.data[0].url.split("/").pop();
const isKept = async () => (await api("GET", `/v1/darkroom/results/${name}`)).status === 200;

await spec("delete", "/console/gallery", async (page, { looks, shot }) => {
  const card = page.getByRole("button", { name: "Open a doomed tower" });
  const undo = page.getByRole("button", { name: "Undo" });
  const remove = async (press) => {
    await card.click();
    await press();
    await card.waitFor({ state: "detached" });
    await page.getByText("The image was deleted.").waitFor();
  };
  const byButton = () => page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  const byKey = () => page.keyboard.press("Delete");
  await page.clock.install();
  await remove(byButton);
  await eventually(async () => assert.ok(await undo.evaluate((button) => button === document.activeElement)));
  await looks("gallery, one deleted");
  await shot("gallery-undo", { theme: "light" });
  await page.keyboard.press("Enter"); // on Undo
  await card.waitFor();
  await remove(byKey);
  await page.keyboard.press("Control+z");
  await card.waitFor();
  await page.clock.fastForward(60_000); // what was taken back stays so
  assert.ok(await isKept());

  await remove(byKey);
  await page.getByRole("link", { name: "Chat" }).click(); // another page of the console: there is still time
  await undo.click();
  await page.getByRole("link", { name: "Gallery" }).click();
  await card.waitFor();

  const [image, download] = await card.click().then(() => Promise.all(["Delete", "Download"].map((each) => page.getByText(each, { exact: true }).boundingBox())));
  assert.ok(image.x - (download.x + download.width) > 40 || image.y - (download.y + download.height) > 20, "Delete is beside Download");
  await page.keyboard.press("Escape");

  await remove(byButton);
  const sent = page.waitForResponse((response) => response.request().method() === "DELETE");
  await page.clock.fastForward(11_000);
  assert.equal((await sent).status(), 200);
  assert.equal(await isKept(), false);
  await undo.waitFor({ state: "detached" });
});

const left = await draw("a forgotten tower", { seed: 10 });

await spec("delete-and-leave", "/console/gallery", async (page) => {
  const card = page.getByRole("button", { name: "Open a forgotten tower" });
  await card.click();
  await page.keyboard.press("Delete");
  await card.waitFor({ state: "detached" });
  await page.goto("about:blank");
  await eventually(async () => assert.equal((await api("GET", `/v1/darkroom/results/${left.body.data[0].url.split("/").pop()}`)).status, 404));
  await page.goBack();
});

await spec("large-view", "/console/gallery", async (page) => {
  for (const [button, path] of [["Recall all settings", "generate"], ["Use as reference", "generate"], ["Edit", "edit"]]) {
    await page.getByRole("button", { name: "Open a blue boat" }).first().click();
    await page.getByRole("dialog").getByRole("button", { name: button, exact: true }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" }); // nothing stays over what it leads to
    await eventually(async () => assert.ok(page.url().split("?")[0] === `${base}/console/${path}`));
    await page.getByRole("link", { name: "Gallery" }).click();
  }
});
