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

await spec("edit", `/console/edit?image=${name}`, async (page, { looks, shot }) => {
  const image = page.getByAltText("The image to edit");
  await image.evaluate((element) => element.decode());
  const canvas = page.locator(".easel canvas");
  await page.waitForFunction(() => document.querySelector(".easel canvas").width === 1024);
  const painted = () => canvas.evaluate((element) => element.getContext("2d").getImageData(0, 0, element.width, element.height).data.filter((value, index) => index % 4 === 3 && value > 0).length);
  const stroke = async () => {
    const box = await canvas.boundingBox();
    await page.mouse.move(box.x + box.width * 0.1, box.y + box.height * 0.15);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.9, box.y + box.height * 0.15, { steps: 5 });
    await page.mouse.up();
  };
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

  await page.getByLabel("What it shall become").fill("a sunset");
  await page.locator("#seed").fill("5");
  await page.getByRole("button", { name: /^Generate/ }).click();
  await page.getByLabel("Before and after").waitFor();
  const [inside, outside] = [await difference(page, [0.2, 0.13, 0.8, 0.17]), await difference(page, [0, 0.5, 1, 1])];
  assert.ok(inside > 3 * outside, `the painted part changed by ${inside}, the rest by ${outside}`);
  await eventually(async () => assert.ok((await page.getByLabel("Before and after").boundingBox()).y < 860)); // it came into view
  await page.setViewportSize({ width: 390, height: 844 });
  await page.getByLabel("Before and after").scrollIntoViewIfNeeded();
  await shot("edit-after", { width: "phone", theme: "light" });
});
