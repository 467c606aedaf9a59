// Conversation: an image in an answer, a change of it, a branch from an earlier turn, and all of it after a reload.
import { api, assert, eventually, spec } from "./harness.mjs";

await spec("conversation", "/console/conversation", async (page, { looks, shot }) => {
  const parents = [];
  await page.route("**/v1/responses", (route) => { // it has to draw, whatever the model would say
    const body = route.request().postDataJSON();
    return route.continue({ postData: JSON.stringify({ ...body, ...(body.tools && { tool_choice: { type: "image_generation" } }) }) });
  });
  page.on("request", (request) => {
    if (request.method() === "POST" && request.url().endsWith("/v1/responses")) parents.push(request.postDataJSON().previous_response_id);
  });
  const say = async (text) => {
    const before = parents.length;
    const answers = page.getByRole("group", { name: "Model" });
    const earlier = await answers.count();
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.getByRole("button", { name: "Send" }).click();
    await answers.nth(earlier).and(page.locator("[aria-busy=false]")).waitFor();
    await page.waitForFunction(() => document.querySelector("#message").value === "");
    await eventually(async () => assert.equal(parents.length, before + 1));
  };
  await say("draw a red boat at sea");
  const image = page.getByAltText("Image for: draw a red boat at sea");
  await image.evaluate((image) => image.decode());
  await looks();
  await shot();
  await page.getByLabel("It may draw.").uncheck();
  await say("hello");
  await page.getByRole("button", { name: "Branch from here" }).click();
  await eventually(async () => assert.equal(await page.getByRole("group", { name: "You" }).count(), 1));
  await say("good bye");
  assert.equal(parents[0], null);
  assert.equal(parents[2], parents[1]); // both continue the first turn
  await page.getByRole("button", { name: "Branch 2" }).click();
  await eventually(async () => assert.deepEqual(await page.getByRole("group", { name: "You" }).allInnerTexts(), ["draw a red boat at sea", "hello"]));

  await page.getByRole("button", { name: "Change the message" }).last().click();
  await eventually(async () => assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "hello"));
  await eventually(async () => assert.equal(await page.getByRole("group", { name: "You" }).count(), 1));
  await page.getByRole("button", { name: "Branch 2" }).click();
  await page.getByLabel("Message", { exact: true }).fill("");

  // at large, with what the server knows of it
  await image.click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText(/^beta/).waitFor();
  await dialog.getByRole("button", { name: "Recall all settings" }).waitFor();
  await looks("conversation, an image at large");
  await page.keyboard.press("Escape");

  // found again by its first turn, with all branches, in another browser too; it has a name, and is deleted as a whole with undo
  await page.getByRole("button", { name: "New conversation" }).click();
  await page.getByRole("button", { name: "Rename draw a red boat at sea" }).first().click();
  await page.getByLabel("Title").fill("The red boat");
  await page.getByRole("button", { name: "Save" }).click();
  const earlier = page.getByRole("button", { name: "The red boat", exact: true });
  await earlier.click();
  await eventually(async () => assert.deepEqual(await page.getByRole("group", { name: "You" }).allInnerTexts(), ["draw a red boat at sea", "good bye"]));
  await image.evaluate((image) => image.decode());
  await page.getByRole("button", { name: "Branch 2" }).click();
  await eventually(async () => assert.deepEqual(await page.getByRole("group", { name: "You" }).allInnerTexts(), ["draw a red boat at sea", "hello"]));
  const stored = async () => (await api("GET", "/v1/darkroom/responses?limit=100")).body.data.length;
  const before = await stored();
  await page.clock.install();
  const remove = async () => {
    await page.getByRole("button", { name: "Delete The red boat" }).click();
    await page.getByText("The conversation was deleted.").waitFor();
  };
  await remove();
  await eventually(async () => assert.equal(await page.getByRole("group", { name: "You" }).count(), 0));
  await page.getByRole("button", { name: "Undo" }).click();
  await earlier.waitFor();
  await remove();
  await page.clock.fastForward(11_000);
  await eventually(async () => assert.equal(await stored(), before - 3));
});
