// Recall: what the form then sends is what the image was drawn with, to the last digit; and what is missing is said.
import { api, assert, base, eventually, spec } from "./harness.mjs";

const ALPHA = "alpha-image-2-count";
const SEED = "9223372036854775806"; // of two images, whose seeds end at 2^63 - 1; no number of JavaScript is one of them
const nameOf = (answer) => answer.body.data[0].url.split("/").pop();
const draw = (prompt, more = {}) => api("POST", "/v1/images/generations", { model: ALPHA, prompt, response_format: "url", ...more });

// The digits of a field in JSON, before anything reads them as a number.
const digits = (text, name) => new RegExp(`"${name}":(\\d+)`).exec(text)?.[1];

async function openFirst(page, words) {
  await page.goto(`${base}/console/gallery`);
  await page.getByLabel("Words of the prompt").fill(words);
  const found = page.waitForResponse((response) => response.url().includes("/v1/darkroom/results?") && response.url().includes("q="));
  await page.keyboard.press("Enter");
  await found;
  await page.getByRole("button", { name: `Open ${words}` }).first().click();
  return page.getByRole("dialog");
}

// Recalls the open image, and returns what the form then sends. The button's dialog gives way to the form.
async function sentAfterRecall(page, button = "Generate") {
  await page.getByRole("dialog").getByRole("button", { name: "Recall all settings" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.locator("#prompt").waitFor();
  const sent = page.waitForRequest((request) => request.method() === "POST" && request.url().includes("/v1/images/"));
  const answered = page.waitForResponse((response) => response.request().method() === "POST" && response.url().includes("/v1/images/"));
  await page.getByRole("button", { name: new RegExp(`^${button} · CNY`) }).click();
  assert.equal((await answered).status(), 202);
  return sent;
}

// The mean difference of two results' pixels.
const difference = (page, ...names) => page.evaluate(async (each) => {
  const [one, other] = await Promise.all(each.map(async (url) => {
    const image = await createImageBitmap(await (await fetch(url)).blob());
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height).data;
  }));
  return one.reduce((sum, value, index) => sum + Math.abs(value - other[index]), 0) / one.length;
}, names.map((name) => `${base}/cdn/${name}`));

const all = await fetch(`${base}/v1/images/generations`, {
  method: "POST",
  headers: { Authorization: `Bearer ${process.argv[4]}`, "Content-Type": "application/json" },
  body: `{"model":"${ALPHA}","prompt":"every setting","seed":${SEED},"size":"768x512","quality":"low","steps":3,"guidance":2.25,"negative_prompt":"fog","output_format":"jpeg","n":2,"response_format":"url"}`,
});
assert.equal(all.status, 200);

await spec("recall", "/console/gallery", async (page, { context, looks, shot }) => {
  const dialog = await openFirst(page, "every setting");
  await eventually(async () => assert.match(await dialog.innerText(), /Seed\s+\d{19}\n/));
  const seed = /Seed\s+(\d+)/.exec(await dialog.innerText())[1];
  await eventually(async () => assert.match(await dialog.innerText(), /File format\s+jpeg/));
  const request = await sentAfterRecall(page);
  const body = request.postDataJSON();
  assert.equal(digits(request.postData(), "seed"), seed);
  delete body.seed;
  assert.deepEqual(body, {
    model: ALPHA, prompt: "every setting", n: 1, size: "768x512", steps: 3, guidance: 2.25, negative_prompt: "fog", output_format: "jpeg",
    response_format: "url", partial_images: 3,
  });
  await page.getByRole("button", { name: "Open every setting" }).waitFor();
  assert.ok(await page.locator("#steps").isVisible()); // unfolded
  await looks();

  // a quality takes the place of the steps, and what is also sent can be left out
  await page.locator("#quality").selectOption("low");
  await eventually(async () => assert.equal(await page.locator("#steps").inputValue(), ""));
  await page.getByRole("button", { name: "Leave out File format" }).click();
  await page.locator("#seed").fill("9007199254740993");
  const sent = page.waitForRequest((each) => each.method() === "POST");
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  const again = (await sent).postDataJSON();
  assert.equal(digits((await sent).postData(), "seed"), "9007199254740993");
  assert.deepEqual([again.quality, "steps" in again, "output_format" in again], ["low", false, false]);
  await page.getByRole("button", { name: "Open every setting" }).nth(1).waitFor();

  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByRole("button", { name: "Copy as curl" }).click();
  await page.getByText("Copied.").waitFor();
  const curl = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(digits(curl, "seed"), "9007199254740993");
  assert.match(curl, /"response_format":"url"/);
  assert.doesNotMatch(curl, /partial_images|background/);
});

await spec("recall-after-a-reload", "/console", async (page) => {
  await page.locator("#model").selectOption("beta-3-pro-image-4k-count");
  await page.locator("#prompt").fill("a lighthouse");
  await page.locator("#seed").fill("77");
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  await page.getByRole("article", { name: "a lighthouse" }).waitFor();
  await page.reload();
  await page.getByRole("button", { name: "Open a lighthouse" }).click(); // it has its prompt
  const body = (await sentAfterRecall(page)).postDataJSON();
  assert.deepEqual([body.prompt, body.seed, body.model], ["a lighthouse", 77, "beta-3-pro-image-4k-count"]);
  await page.getByRole("article").getByRole("button", { name: "Cancel" }).click();
  await page.getByText("Cancelled. Nothing was charged.").waitFor();
});

// Edits by files: one of a stored image, which the server knows again, and one of an image that it does not keep.
const drawn = nameOf(await draw("a red boat at sea", { seed: 3 }));
const png = await (await fetch(`${base}/cdn/${drawn}`)).blob();
const edits = async (prompt, ...images) => {
  const form = new FormData();
  for (const image of images) form.append("image[]", image, "a.png");
  for (const [name, value] of Object.entries({ prompt, model: ALPHA, seed: 5, strength: 0.5, response_format: "url" })) form.append(name, value);
  const answer = await fetch(`${base}/v1/images/edits`, { method: "POST", headers: { Authorization: `Bearer ${process.argv[4]}` }, body: form });
  assert.equal(answer.status, 200, await answer.clone().text());
};
await edits("a blue boat", png);

await spec("recall-of-an-edit", "/console/gallery", async (page, { shot }) => {
  await edits("another boat", new Blob([await page.screenshot()]));
  const dialog = await openFirst(page, "a blue boat");
  await dialog.getByText("Made from", { exact: true }).waitFor();
  await sentAfterRecall(page);
  assert.equal(page.url().split("?")[0], `${base}/console/edit`);
  await page.getByLabel("Before and after").waitFor();
  await eventually(async () => assert.ok((await page.getByAltText("The image to edit").getAttribute("src")).endsWith(`/cdn/${drawn}`)));
  const [again, first] = (await api("GET", "/v1/darkroom/results?limit=2&q=a+blue+boat")).body.data;
  assert.deepEqual([again.prompt, again.parents, again.endpoint, again.seed], ["a blue boat", [drawn], "images.edits", 5]);
  assert.deepEqual(again.parameters, first.parameters);
  assert.ok((await difference(page, again.id, first.id)) < 0.01); // the same image

  // its image is not here: it is asked for, and nothing can be sent without it
  await openFirst(page, "another boat");
  await page.getByRole("dialog").getByRole("button", { name: "Recall all settings" }).click();
  await page.getByText("was sent as a file, which the server does not keep").waitFor();
  await eventually(async () => assert.equal(await page.locator("#strength").inputValue(), "0.5"));
  assert.ok(await page.getByRole("button", { name: /^Generate · CNY/ }).isDisabled());
});

// Files that this browser sent, with the paint on one: both are back after a reload, until its person signs out.
const made = await api("POST", "/v1/images/generations", { model: ALPHA, prompt: "a green hill", seed: 4, size: "768x512", output_format: "jpeg", response_format: "b64_json" });
const hill = { name: "hill.jpg", mimeType: "image/jpeg", buffer: Buffer.concat([Buffer.from(made.body.data[0].b64_json, "base64"), Buffer.from([0])]) }; // no result has these bytes

await spec("recall-of-sent-files", "/console/edit", async (page) => {
  const canvas = page.locator(".easel canvas");
  const painted = () => canvas.evaluate((element) => element.getContext("2d").getImageData(0, 0, element.width, element.height).data.filter((value, index) => index % 4 === 3 && value > 0).length);
  await page.locator("#model").selectOption(ALPHA);
  await page.locator("#image").setInputFiles(hill);
  await page.waitForFunction(() => document.querySelector(".easel canvas")?.width === 768);
  const box = await canvas.boundingBox();
  await page.mouse.move(box.x + box.width * 0.1, box.y + box.height * 0.15);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.9, box.y + box.height * 0.15, { steps: 5 });
  await page.mouse.up();
  await page.getByLabel("What to change").fill("a painted hill");
  await page.locator("#seed").fill("5");
  const once = await painted();
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  await page.getByLabel("Before and after").waitFor();

  await openFirst(page, "a painted hill"); // goes there by its address: nothing of the page before is left
  await sentAfterRecall(page);
  const both = async () => (await api("GET", "/v1/darkroom/results?limit=2&q=a+painted+hill")).body.data;
  await eventually(async () => assert.equal((await both()).length, 2));
  assert.equal(await painted(), once);
  const [again, first] = await both();
  assert.notEqual(again.call_id, first.call_id);
  assert.deepEqual(again.parameters, first.parameters);
  assert.equal(again.parameters.masked, true);
  assert.ok((await difference(page, again.id, first.id)) < 0.01); // the same image

  await page.goto(`${base}/console`);
  await page.locator("#model").selectOption(ALPHA);
  await page.locator("#prompt").fill("a hill by its file");
  await page.locator("#image").setInputFiles(hill);
  await page.getByAltText("Reference 1").waitFor();
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  await page.getByRole("button", { name: "Open a hill by its file" }).waitFor();
  await openFirst(page, "a hill by its file");
  const body = (await sentAfterRecall(page)).postDataJSON();
  assert.deepEqual(body.image, [`data:image/jpeg;base64,${hill.buffer.toString("base64")}`]);

  const kept = () => page.evaluate(async (root) => {
    const { sentWith } = await import(`${root}/console/state/sent-files.js`);
    const { data } = await (await fetch(`${root}/v1/darkroom/results?limit=1&q=a+painted+hill`)).json();
    return data.length ? sentWith(data[0].call_id) : null;
  }, base);
  assert.equal((await kept()).strokes.length, 1);
  await page.getByRole("button", { name: "Sign out" }).click();
  const left = () => page.evaluate(async ([root, call]) => (await import(`${root}/console/state/sent-files.js`)).sentWith(call), [base, again.call_id]);
  await eventually(async () => assert.equal(await left(), null));
}, { refusals: [401] }); // a look at the call that still runs may come after the session's end

// What only other checkpoints have: the console's own recall of an image that the gallery could list.
await spec("recall-of-more", "/console", async (page, { looks }) => {
  await page.locator("#prompt").waitFor();
  await page.evaluate(async ([root, model]) => {
    const { recall } = await import(`${root}/console/state/recall.js`);
    recall({
      id: "x.png", prompt: "a red boat", model, seed: 7, parents: [], endpoint: "images.generations",
      parameters: {
        n: 3, size: "1024x1024", quality: "high", output_format: "webp", model, checkpoint: "starter-alpha", steps: 20, guidance: 2, strength: 0.4,
        negative_prompt: "", scheduler: "DDIMScheduler", loras: { ink: 0.8 }, controls: { edges: 0.7 }, prompt_tokens: { used: 5, of: 77 },
        adapters: { ink: "ab12" }, references: 1, batch: "merged",
      },
    });
  }, [base, ALPHA]);
  await page.getByText("LoRAs: ink 0.8").waitFor();
  await page.getByText("The control edges (strength 0.7): its image was not kept.").waitFor();
  await page.getByText("was sent as a file, which the server does not keep").waitFor();
  await page.getByText("The scheduler DDIMScheduler can't be chosen").waitFor();
  await eventually(async () => assert.equal(await page.locator("input[name=size]:checked").inputValue(), "1:1"));
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  assert.deepEqual((await sent).postDataJSON(), {
    loras: { ink: 0.8 }, output_format: "webp", model: ALPHA, prompt: "a red boat", size: "1024x1024", n: 1, seed: 7, steps: 20, guidance: 2,
    response_format: "url", partial_images: 3,
  });
  await eventually(async () => assert.match(await page.getByRole("alert").textContent(), /no LoRA adapters/));
  await eventually(async () => assert.equal(await page.evaluate(() => document.activeElement.id), "loras"));
  await looks("recall of more");
  await page.getByRole("button", { name: "Leave out LoRAs" }).click();
  await page.getByText("LoRAs: ink 0.8").waitFor({ state: "detached" });
}, { refusals: [400] });
