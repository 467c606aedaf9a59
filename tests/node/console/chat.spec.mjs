// Chat: an answer that streams, is stopped, and remembers.
import { assert, eventually, spec } from "./harness.mjs";

await spec("chat", "/console/chat", async (page, { looks, shot }) => {
  const bodies = [];
  page.on("request", (request) => request.url().endsWith("/v1/chat/completions") && bodies.push(request.postDataJSON()));
  const answers = page.getByRole("group", { name: "Model" });
  await page.getByLabel("Most tokens").fill("40");
  await page.getByLabel("Message", { exact: true }).fill("Hello, who are you?");
  await page.keyboard.press("Control+Enter");
  await page.getByText(/tokens read/).waitFor();
  await eventually(async () => assert.ok((await answers.textContent()).trim().length > 3));
  await eventually(async () => assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), ""));
  await page.route("**/v1/chat/completions", () => {}); // an answer that does not come
  await page.getByLabel("Message", { exact: true }).fill("Write a long story.");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByRole("button", { name: "Stop" }).waitFor({ state: "detached" });
  await eventually(async () => assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "Write a long story."));
  await eventually(async () => assert.deepEqual(bodies[1].messages.map((message) => message.role), ["user", "assistant", "user"]));
  await looks();
  await shot("chat", { theme: "light" });
  await page.getByRole("button", { name: "New chat" }).click();
  await eventually(async () => assert.equal(await answers.count(), 0));
});
