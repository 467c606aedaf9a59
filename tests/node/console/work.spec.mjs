// The work of every page outlives the page and a reload: forms, paint, chats, comparisons and what runs. What has failed
// can be sent again, and a press shows what it began.
import { allEnded, api, assert, eventually, spec } from "./harness.mjs";

const MODEL = "beta-2.5-flash-image-count";

// What this browser's records have of a part.
const kept = (page, name) => page.evaluate((key) => new Promise((resolve, reject) => {
  const opening = indexedDB.open("darkroom-sent-files");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const found = opening.result.transaction("work").objectStore("work").get(key);
    found.onsuccess = () => {
      opening.result.close();
      resolve(found.result?.value ?? null);
    };
  };
}), name);

// Reloads when the records have what the page shows.
async function reloadOnceKept(page, name, isKept) {
  await eventually(async () => assert.ok(isKept(await kept(page, name)), `${name} is not kept`));
  await page.reload();
}

const go = async (page, name) => {
  await page.getByRole("link", { name, exact: true }).first().click();
  await page.getByRole("heading", { name, exact: true, level: 1 }).waitFor();
};
const button = (page, name) => page.getByRole("button", { name });

await spec("work-of-generate", "/console", async (page, { context }) => {
  await page.locator("#prompt").fill("a lighthouse in fog");
  await page.locator("#model").selectOption(MODEL);
  await page.locator("#n").fill("2");
  await page.locator("#seed").fill("9223372036854775806");
  await reloadOnceKept(page, "draft", (draft) => draft?.seed === "9223372036854775806");
  await eventually(async () => assert.deepEqual(
    [await page.locator("#prompt").inputValue(), await page.locator("#n").inputValue(), await page.locator("#seed").inputValue()],
    ["a lighthouse in fog", "2", "9223372036854775806"],
  ));
  await page.locator("#seed").fill("7");

  // on a phone the card comes into sight, and so does an error
  await page.setViewportSize({ width: 390, height: 844 });
  await page.evaluate(() => scrollTo(0, 0));
  await button(page, /^Generate · CNY/).click();
  await page.locator("article.job, figure.card").first().waitFor();
  await eventually(async () => assert.ok(await page.evaluate(() => scrollY > 0)));
  await button(page, "Open a lighthouse in fog").nth(1).waitFor();
  await page.setViewportSize({ width: 390, height: 500 });
  await page.locator("#prompt").fill("something forbidden");
  await page.locator("#n").fill("1");
  await button(page, /^Generate · CNY/).click();
  await page.getByRole("alert").waitFor();
  await eventually(async () => assert.ok(await page.getByRole("alert").evaluate((note) => note.getBoundingClientRect().top < innerHeight)));
  await page.setViewportSize({ width: 1280, height: 860 });

  // the results of today stay; one that was cancelled is sent again with all that it had
  await page.locator("#model").selectOption("beta-3-pro-image-4k-count");
  await page.locator("#prompt").fill("a tall tower");
  await page.locator("#n").fill("4");
  await button(page, /^Generate · CNY/).click();
  await page.getByRole("article", { name: "a tall tower" }).waitFor();
  await reloadOnceKept(page, "jobs", (jobs) => jobs?.some((job) => job.request?.prompt === "a tall tower"));
  await button(page, "Open a lighthouse in fog").nth(1).waitFor();
  const card = page.getByRole("article", { name: "a tall tower" });
  await card.getByRole("button", { name: "Cancel" }).click();
  const sent = page.waitForRequest((request) => request.method() === "POST" && request.url().endsWith("/v1/images/generations"));
  await card.getByRole("button", { name: "Try again" }).click();
  const { prompt, n, seed } = (await sent).postDataJSON();
  assert.deepEqual([prompt, n, seed, (await sent).headers().prefer], ["a tall tower", 4, 7, "respond-async"]);
  await card.getByRole("button", { name: "Cancel" }).click();
  await card.getByText("Cancelled. Nothing was charged.").waitFor();
  assert.equal(await card.count(), 1); // in place of the one that had failed

  // nothing is left for the next person
  await button(page, "Sign out").click();
  await page.getByLabel("API key").waitFor();
  await eventually(async () => assert.equal(await kept(page, "draft"), null));
  assert.ok(context);
}, { refusals: [400] });

const drawn = await api("POST", "/v1/images/generations", { model: MODEL, prompt: "a green hill", seed: 4, size: "768x512", response_format: "b64_json" });
const image = { name: "hill.png", mimeType: "image/png", buffer: Buffer.from(drawn.body.data[0].b64_json, "base64") };

await spec("work-of-edit", "/console/edit", async (page) => {
  const painted = () => page.locator(".easel canvas").evaluate((element) => element.getContext("2d").getImageData(0, 0, element.width, element.height).data.filter((value, index) => index % 4 === 3 && value > 0).length);
  await page.locator("#image").setInputFiles(image);
  await page.waitForFunction(() => document.querySelector(".easel canvas")?.width === 768);
  await page.getByLabel("What to change").fill("a sunset");
  const box = await page.locator(".easel canvas").boundingBox();
  await page.mouse.move(box.x + 50, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + 300, box.y + 60, { steps: 4 });
  await page.mouse.up();
  const before = await painted();
  assert.ok(before > 1000);
  await go(page, "Gallery");
  await go(page, "Edit");
  await eventually(async () => assert.equal(await painted(), before));
  await page.route("**/v1/images/jobs/*?previews=true", (route) => route.fulfill({ status: 404, json: { error: { message: "It is gone.", code: null } } }), { times: 1 });
  await page.getByLabel("What to change").press("Control+Enter"); // it fails
  const card = page.getByRole("article", { name: "a sunset" });
  await card.getByText("It is gone.").waitFor();
  await reloadOnceKept(page, "jobs", (jobs) => jobs?.some((job) => job.state === "failed" && job.request.mask));
  await page.waitForFunction(() => document.querySelector(".easel canvas")?.width === 768);
  await eventually(async () => assert.equal(await painted(), before));
  assert.equal(await page.getByLabel("What to change").inputValue(), "a sunset");
  await card.getByRole("button", { name: "Try again" }).click();
  await page.getByLabel("Before and after").waitFor();
  const [made] = (await api("GET", "/v1/darkroom/results?limit=1")).body.data;
  assert.deepEqual([made.prompt, made.parameters.references, made.parameters.masked], ["a sunset", 1, true]);
  await allEnded();
}, { refusals: [404] });

await spec("work-of-chat", "/console/chat", async (page, { looks }) => {
  const message = page.getByLabel("Message", { exact: true });
  const answers = page.getByRole("group", { name: "Model" });
  await page.getByLabel("Most tokens").fill("60");
  await message.fill("Hello, who are you?");
  await page.keyboard.press("Control+Enter");
  await answers.waitFor();
  await go(page, "Gallery"); // the answer goes on meanwhile
  await go(page, "Chat");
  await page.getByText(/tokens read/).waitFor();
  const answer = await answers.innerText();
  await message.fill("not sent yet");
  await reloadOnceKept(page, "chat", (chat) => chat?.text === "not sent yet");
  await eventually(async () => assert.deepEqual([await answers.innerText(), await message.inputValue()], [answer, "not sent yet"]));
  await button(page, "New chat").click();
  await answers.waitFor({ state: "detached" });
  await button(page, "Hello, who are you?").first().click();
  await eventually(async () => assert.equal(await answers.innerText(), answer));
  await button(page, "New chat").click();
  await looks("earlier chats");
  await button(page, "Delete Hello, who are you?").click();
  await page.getByText("None yet.").waitFor();
});

await spec("work-of-conversation", "/console/conversation", async (page) => {
  await page.route("**/v1/responses", (route) => { // it has to draw, whatever the model would say
    const body = route.request().postDataJSON();
    return route.continue({ postData: JSON.stringify({ ...body, tool_choice: { type: "image_generation" } }) });
  });
  await page.getByLabel("Message", { exact: true }).fill("draw a red boat at sea");
  await button(page, "Send").click();
  await reloadOnceKept(page, "talk", (talk) => talk?.live || talk?.turns.length);
  const shown = page.getByAltText("Image for: draw a red boat at sea");
  await shown.evaluate((image) => image.decode()); // it went on
  await go(page, "Gallery");
  await go(page, "Conversation");
  await shown.evaluate((image) => image.decode());
});

await spec("work-of-compare", "/console/compare", async (page) => {
  await page.getByRole("textbox", { name: "Prompt", exact: true }).fill("a red boat");
  await page.getByRole("combobox", { name: "Model" }).selectOption(MODEL);
  await page.getByRole("textbox", { name: "Values, with commas" }).fill("1, 2, 3");
  const posts = [];
  page.on("request", (request) => request.method() === "POST" && request.url().endsWith("/v1/images/generations") && posts.push(`${request.postDataJSON().seed} ${request.headers()["idempotency-key"]}`));
  await button(page, /^Generate 3 images/).click();
  await go(page, "Gallery");
  await reloadOnceKept(page, "comparison", (comparison) => Object.values(comparison?.cells ?? {}).some((cell) => cell.id));
  await go(page, "Compare");
  await eventually(async () => assert.equal(await page.locator(".sheet td img").count(), 3));
  await eventually(async () => assert.equal(new Set(posts).size, 3)); // none was drawn twice
});
