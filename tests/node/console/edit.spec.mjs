// Edit: what the brush painted changes, and nothing else does.
import { api, assert, eventually, spec } from "./harness.mjs";

const drawn = await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a red boat at sea", response_format: "url", seed: 3 });
const name = drawn.body.data[0].url.split("/").pop();

// The mean difference of two images of the page, within a box by shares of their sides.
const difference = (page, [left, top, right, bottom]) => page.evaluate(async (box) => {
  const pixels = await Promise.all(["Before", "After"].map(async (alt) => {
    const image = document.querySelector(`img[alt="${alt}"]`);
    await image.decode();
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const [x, y] = [box[0] * canvas.width, box[1] * canvas.height];
    return context.getImageData(x, y, (box[2] - box[0]) * canvas.width, (box[3] - box[1]) * canvas.height).data;
  }));
  return pixels[0].reduce((sum, value, index) => sum + Math.abs(value - pixels[1][index]), 0) / pixels[0].length;
}, [left, top, right, bottom]);

async function paintBand(page) {
  const box = await page.locator(".easel canvas").boundingBox();
  await page.mouse.move(box.x + box.width * 0.1, box.y + box.height * 0.15);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.9, box.y + box.height * 0.15, { steps: 5 });
  await page.mouse.up();
}

// Generates with the painted band, and sees that it changed.
const paintedChanges = async (page) => {
  await page.getByLabel("What to change").fill("a sunset");
  await page.locator("#seed").fill("5");
  await page.locator("#n").fill("2");
  await page.getByRole("button", { name: /^Generate/ }).click();
  await page.getByLabel("Before and after").waitFor();
  const [inside, outside] = [await difference(page, [0.2, 0.13, 0.8, 0.17]), await difference(page, [0, 0.5, 1, 1])];
  assert.ok(inside > 3 * outside, `the painted part changed by ${inside}, the rest by ${outside}`);
};

await spec("edit", `/console/edit?image=${name}`, async (page, { looks, shot }) => {
  const image = page.getByAltText("The image to edit");
  await image.evaluate((element) => element.decode());
  const canvas = page.locator(".easel canvas");
  await page.waitForFunction(() => document.querySelector(".easel canvas").width === 1024);
  const painted = () => canvas.evaluate((element) => element.getContext("2d").getImageData(0, 0, element.width, element.height).data.filter((value, index) => index % 4 === 3 && value > 0).length);
  const stroke = () => paintBand(page);
  await stroke();
  const once = await painted();
  assert.ok(once > 40_000, `${once} pixels painted`);
  await page.getByRole("button", { name: "Eraser" }).click();
  await page.getByRole("button", { name: "Eraser", pressed: true }).waitFor();
  await stroke();
  await eventually(async () => assert.ok((await painted()) < once / 10));
  await page.getByRole("button", { name: "Undo" }).click();
  await eventually(async () => assert.equal(await painted(), once));
  await page.getByRole("button", { name: "Invert" }).click();
  await eventually(async () => assert.ok((await painted()) > 1024 * 1024 - once - 5000));
  await page.getByRole("button", { name: "Undo" }).click();
  await looks();
  await shot();

  await paintedChanges(page);
  await eventually(async () => assert.ok((await page.getByLabel("Before and after").boundingBox()).y < 860)); // it came into view
  await page.setViewportSize({ width: 390, height: 844 });
  await page.getByLabel("Before and after").scrollIntoViewIfNeeded();
  await shot("edit-after", { width: "phone", theme: "light" });
});

// One's own file, of which the server knows nothing: a JPEG of the image above.
const own = await (async () => {
  const made = await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a green hill", seed: 4, size: "768x512", output_format: "jpeg", response_format: "b64_json" });
  return Buffer.concat([Buffer.from(made.body.data[0].b64_json, "base64"), Buffer.from([0])]); // one byte more: no result is the same
})();

await spec("edit-file", "/console/edit", async (page, { looks, shot }) => {
  const shown = page.getByAltText("The image to edit");
  const choose = async (file) => {
    const chooser = page.waitForEvent("filechooser");
    await page.locator("#image").click();
    await (await chooser).setFiles(file);
  };
  await choose({ name: "notes.png", mimeType: "image/png", buffer: Buffer.from("these are only words") });
  await page.getByText("notes.png is no image that can be read. Take a PNG, JPEG, WebP, AVIF or GIF file.").waitFor();
  assert.equal(await shown.count(), 0); // nor a toolbar over nothing
  await choose({ name: "hill.jpg", mimeType: "image/jpeg", buffer: own });
  await page.waitForFunction(() => document.querySelector(".easel canvas")?.width === 768);
  await eventually(async () => assert.equal(await page.getByRole("alert").count(), 0));
  await paintBand(page);
  await paintedChanges(page);
  const made = (await api("GET", "/v1/darkroom/results?limit=2")).body.data;
  assert.deepEqual(made.map((one) => one.seed).sort(), [5, 6]);
  for (const one of made) assert.deepEqual([one.prompt, one.parents, one.parameters.references, one.parameters.masked], ["a sunset", [], 1, true]);
  await looks("edit, one's own file");

  // other pages keep it, and a recall here brings back file and paint
  await page.getByRole("link", { name: "Gallery" }).click();
  await page.getByRole("searchbox").waitFor();
  await page.getByRole("link", { name: "Edit", exact: true }).click();
  await page.waitForFunction(() => document.querySelector(".easel canvas")?.width === 768);
  await page.getByRole("button", { name: "Clear" }).click();
  await page.getByLabel("What to change").fill("");
  await page.getByRole("button", { name: "Open a sunset" }).first().click();
  await page.getByRole("button", { name: "Recall all settings" }).click();
  await eventually(async () => assert.equal(await page.getByLabel("What to change").inputValue(), "a sunset"));
  await eventually(async () => assert.ok(await page.locator(".easel canvas").evaluate((element) => element.getContext("2d").getImageData(0, 0, element.width, element.height).data.some((value) => value > 0))));

  // dropped anywhere, and pasted
  const give = (type) => page.evaluate(async ([bytes, kind]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], `${kind}.jpg`, { type: "image/jpeg" }));
    const event = kind === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }) : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);
    return event.defaultPrevented;
  }, [[...own], type]);
  for (const type of ["drop", "paste"]) {
    const before = await shown.getAttribute("src");
    assert.ok(await give(type));
    await eventually(async () => assert.notEqual(await shown.getAttribute("src"), before));
  }
  await page.getByRole("link", { name: "Generate" }).click();
  await page.locator("#prompt").waitFor();
  await give("drop");
  await page.getByAltText("Reference 1").waitFor();
  await give("paste");
  await page.getByAltText("Reference 2").waitFor();
  await page.locator("#image").setInputFiles({ name: "notes.png", mimeType: "image/png", buffer: Buffer.from("words") });
  await page.getByText("notes.png is no image that can be read.").waitFor();
});
