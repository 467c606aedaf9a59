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

  // earlier chats have names, and are deleted with undo
  await page.getByRole("button", { name: "Rename Hello, who are you?" }).click();
  await page.getByLabel("Title").fill("A greeting");
  await page.getByRole("button", { name: "Save" }).click();
  const earlier = page.getByRole("button", { name: "A greeting", exact: true });
  await page.getByRole("button", { name: "Delete A greeting" }).click();
  await page.getByText("The chat was deleted.").waitFor();
  await eventually(async () => assert.equal(await earlier.count(), 0));
  await page.getByRole("button", { name: "Undo" }).click();
  await earlier.click();
  await eventually(async () => assert.equal(await answers.count(), 1));
  await page.getByRole("button", { name: "Change the message" }).click();
  await eventually(async () => assert.equal(await answers.count(), 0));
  assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "Hello, who are you?");
});

const MARKDOWN = [
  "# A head", "Some **bold**, *slanted*, ~~struck~~ and `code <b>`. A [link](https://example.org/a), a [trap](javascript:alert(1)), ![an image](https://example.org/i.png).",
  "- one\n- two\n  - [x] done", "3. three\n4. four", "> said", "| a | b |\n|---|--:|\n| 1 | &lt;2&gt; |", "```js\nlet a = 1 < 2;\n```", "---", "<img src=x onerror=alert(1)><script>alert(1)</script>",
].join("\n\n");

await spec("markdown", "/console/chat", async (page, { looks }) => {
  const events = [...MARKDOWN].map((letter) => `data: ${JSON.stringify({ choices: [{ delta: { content: letter } }] })}\n\n`);
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: `${events.join("")}data: [DONE]\n\n` }));
  await page.getByLabel("Message", { exact: true }).fill("Show me **all** of it.");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("button", { name: "Ask again" }).waitFor();
  const found = await page.locator(".prose").evaluate((root) => ({
    ...Object.fromEntries(["h3", "strong", "em", "del", "code", "a", "ul > li", "ol > li", "blockquote", "td", "pre", "hr", "img, script"].map((selector) => [selector, [...root.querySelectorAll(selector)].map((element) => element.textContent)])),
    start: root.querySelector("ol").start,
    hrefs: [...root.querySelectorAll("a")].map((element) => element.href),
    whole: root.textContent,
  }));
  assert.deepEqual(found.h3, ["A head"]);
  assert.deepEqual([found.strong, found.em, found.del, found.code, found.blockquote, found.pre], [["bold"], ["slanted"], ["struck"], ["code <b>"], ["said"], ["let a = 1 < 2;"]]);
  assert.deepEqual(found.hrefs, ["https://example.org/a", "https://example.org/i.png"]); // no script, and nothing that is loaded
  assert.deepEqual([found.td, found["ol > li"], found.start, found.hr.length], [["1", "<2>"], ["three", "four"], 3, 1]);
  assert.deepEqual(found["img, script"], []);
  assert.match(found.whole, /trap.*☑ done.*<script>alert\(1\)<\/script>$/s);
  await eventually(async () => assert.equal(await page.getByRole("group", { name: "You" }).textContent(), "Show me **all** of it.")); // as it was typed
  await looks("chat, Markdown");
});
