// Gallery: kept after a reload, filtered, opened by arrows, every setting recalled, deleted.
import { crc32 } from "node:zlib";
import { api, assert, base, bytesOf, eventually, spec } from "./harness.mjs";

const MODEL = "beta-2.5-flash-image-count";
const draw = (prompt, more = {}) => api("POST", "/v1/images/generations", { model: MODEL, prompt, response_format: "url", ...more });

const first = await draw("a green tree on a hill", { size: "768x512", seed: 7 });
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
  await cards.first().locator(".open").click();
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

  // along the chain, without leaving: what it was made from, before and after, and back to what was made from that
  await dialog.getByRole("button", { name: "Open what it was made from, 1" }).click();
  await dialog.getByText("a green tree on a hill").waitFor();
  await dialog.getByRole("button", { name: "Open what was made from it, 1" }).click();
  await dialog.getByText("a blue boat").waitFor();
  assert.equal(page.url().split("?")[0], `${base}/console/gallery`);
  await page.keyboard.press("b");
  const sides = () => dialog.evaluate((element) => ["Before", "After"].map((alt) => element.querySelector(`img[alt="${alt}"]`)?.getAttribute("src").split("/").pop()));
  await eventually(async () => assert.deepEqual(await sides(), [first, second].map(({ body }) => body.data[0].url.split("/").pop())));
  await dialog.getByRole("slider").press("ArrowRight"); // moves the line, not to another image
  assert.deepEqual(await sides(), [first, second].map(({ body }) => body.data[0].url.split("/").pop()));
  await looks("gallery, before and after");
  await page.keyboard.press("b");
  await dialog.getByRole("button", { name: "Zoom" }).click();
  await eventually(async () => assert.equal(await dialog.locator(".zoomed img").evaluate((image) => image.clientWidth), 768));
  await looks("gallery, zoomed");
  assert.equal(await dialog.getByRole("link", { name: "Download" }).getAttribute("download"), "a-blue-boat_seed8.png");

  // drawn again, it is the same, and it says so
  await dialog.getByRole("button", { name: /^Draw again and compare/ }).click();
  await dialog.getByText("The same, bit for bit.").waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
});

// A ZIP's names and contents, by its list at the end.
function unzipped(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const end = bytes.byteLength - 22;
  assert.equal(view.getUint32(end, true), 0x06054b50);
  const files = {};
  for (let place = view.getUint32(end + 16, true), left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    const [size, length, local] = [view.getUint32(place + 20, true), view.getUint16(place + 28, true), view.getUint32(place + 42, true)];
    const name = new TextDecoder().decode(bytes.subarray(place + 46, place + 46 + length));
    files[name] = bytes.subarray(local + 30 + length, local + 30 + length + size);
    assert.equal(crc32(files[name]), view.getUint32(place + 16, true));
    place += 46 + length;
  }
  return files;
}

const twins = [await draw("a twin tower", { seed: 5, size: "512x512" }), await draw("a twin tower", { seed: 5, size: "512x512" })].map(({ body }) => body.data[0].url.split("/").pop());

await spec("several", "/console/gallery", async (page, { looks }) => {
  const boxes = page.getByRole("checkbox", { name: "Choose a twin tower" });
  await boxes.first().waitFor();
  assert.equal(await page.locator("main h2").first().textContent(), new Intl.DateTimeFormat("en", { dateStyle: "full" }).format(Date.now()));
  for (const box of await boxes.all()) await box.check();
  await page.getByText("2 chosen").waitFor();
  await looks("gallery, two chosen");
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download as ZIP" }).click();
  const files = unzipped(new Uint8Array(await bytesOf(download)));
  assert.deepEqual(Object.keys(files).sort(), ["a-twin-tower_seed5.png", "a-twin-tower_seed5_2.png"]);
  for (const bytes of Object.values(files)) {
    const stored = await Promise.all(twins.map(async (name) => Buffer.from(await (await fetch(`${base}/cdn/${name}`)).arrayBuffer())));
    assert.ok(stored.some((each) => each.equals(Buffer.from(bytes))));
  }
  await page.getByRole("group", { name: "Chosen images" }).getByRole("button", { name: "Delete" }).click();
  await page.getByText("2 images were deleted.").waitFor();
  assert.equal(await boxes.count(), 0);
  await page.getByRole("button", { name: "Undo" }).click();
  await eventually(async () => assert.equal(await boxes.count(), 2));
});

await spec("favourites", "/console/gallery", async (page, { looks }) => {
  const cards = page.locator("figure.card");
  const star = page.getByRole("button", { name: "Favourite: a green tree on a hill", exact: true }).first();
  await star.click();
  await eventually(async () => assert.equal(await star.getAttribute("aria-pressed"), "true"));
  const only = async (wanted) => {
    await page.getByLabel("Favourites only").setChecked(wanted);
    await page.getByRole("button", { name: "Filter" }).click();
  };
  await only(true);
  await eventually(async () => assert.equal(await cards.count(), 1));
  await page.reload(); // the server keeps them
  await only(true);
  await eventually(async () => assert.equal(await cards.count(), 1));
  await looks("gallery, favourites");
  await cards.first().locator(".open").click();
  const pressed = page.getByRole("dialog").getByRole("button", { name: "Favourite" });
  await eventually(async () => assert.equal(await pressed.getAttribute("aria-pressed"), "true"));
  await page.keyboard.press("f");
  await eventually(async () => assert.equal(await pressed.getAttribute("aria-pressed"), "false"));
  await eventually(async () => assert.equal((await api("GET", "/v1/darkroom/results?favourite=true")).body.data.length, 0));
});

const doomed = await draw("a doomed tower", { seed: 9, size: "512x512" });
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

  const [image, download] = await card.click().then(() => Promise.all(["Delete", "Download"].map((each) => page.getByRole("dialog").getByText(each, { exact: true }).boundingBox())));
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
