// A session that ends in the middle of the work: a card over the page, nothing lost, and the call is sent again.
import { admin, allEnded, assert, base, endSessions, eventually, key, spec } from "./harness.mjs";

const card = (page, name = "Your session has ended") => page.getByRole("dialog", { name });

async function signIn(page, secret) {
  await card(page).locator("#session-key").fill(secret);
  await page.keyboard.press("Enter");
}

await spec("session", "/console", async (page, { context, looks, shot }) => {
  const draw = async (prompt) => {
    await page.locator("#prompt").fill(prompt);
    await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  };
  await page.locator("#model").selectOption("beta-3-pro-image-4k-count");
  await page.locator("#n").fill("3");
  await draw("a tall tower at night"); // runs while the session ends
  await page.getByRole("article", { name: "a tall tower at night" }).waitFor();
  await page.locator("#model").selectOption("beta-2.5-flash-image-count");
  await page.locator("#n").fill("1");
  await page.locator("#seed").fill("11");
  await page.locator("#image").setInputFiles({ name: "mine.png", mimeType: "image/png", buffer: await page.screenshot() });
  await page.getByAltText("Reference 1").waitFor();
  await page.route("**/v1/images/generations", async (route) => { // not earlier: what follows the tower would ask first
    await endSessions(context);
    await route.continue();
  }, { times: 1 });

  await draw("a yellow house in the snow");
  await card(page).waitFor();
  await eventually(async () => assert.doesNotMatch(await page.locator("body").innerText(), /didn't provide an API key|Authorization/));
  await page.keyboard.press("Escape"); // it stays
  await page.keyboard.press("Escape");
  await card(page).waitFor();
  await looks("session ended");
  await signIn(page, "sk-dr-wrong");
  await eventually(async () => assert.match(await card(page).getByRole("alert").textContent(), /Incorrect API key/));
  await signIn(page, admin);
  await eventually(async () => assert.match(await card(page).getByRole("alert").textContent(), /An API key is needed here/));
  const sent = page.waitForRequest((request) => request.method() === "POST" && request.url().endsWith("/v1/images/generations"));
  await signIn(page, key);
  assert.deepEqual((({ prompt, seed, image }) => [prompt, seed, image.length])((await sent).postDataJSON()), ["a yellow house in the snow", 11, 1]);
  await card(page).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Open a yellow house in the snow" }).waitFor();
  await eventually(async () => assert.equal(await page.locator("#prompt").inputValue(), "a yellow house in the snow"));
  await page.getByAltText("Reference 1").waitFor();
  await page.getByRole("article", { name: "a tall tower at night" }).getByRole("button", { name: "Cancel" }).click(); // still followed
  await page.getByText("Cancelled. Nothing was charged.").waitFor();
  await allEnded();

  // leaving: nobody is signed in, and nothing waits
  await endSessions(context);
  await page.getByRole("link", { name: "Gallery" }).click();
  await card(page).getByRole("button", { name: "Sign out" }).click();
  await card(page).waitFor({ state: "detached" });
  await page.getByLabel("API key").waitFor();
}, { refusals: [401] });

await spec("session-of-a-chat", "/console/chat", async (page, { context }) => {
  await page.getByLabel("Most tokens").fill("20");
  const say = async (text) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Control+Enter");
  };
  const answers = page.getByRole("group", { name: "Model" }).and(page.locator("[aria-busy=false]"));
  await say("Hello");
  await answers.first().waitFor();
  await endSessions(context);
  await say("And then?");
  await card(page).waitFor();
  await signIn(page, key);
  await answers.nth(1).waitFor();
  await eventually(async () => assert.deepEqual(await page.getByRole("group", { name: "You" }).allInnerTexts(), ["Hello", "And then?"]));
}, { refusals: [401] });

await spec("session-of-an-operator", "/console/queue", async (page, { context }) => {
  await page.getByText("live", { exact: true }).waitFor();
  await endSessions(context);
  await page.getByRole("link", { name: "Keys" }).click();
  await card(page).getByLabel("Admin key").waitFor();
  await signIn(page, admin);
  await page.getByRole("cell", { name: "dev" }).first().waitFor();
  await page.getByRole("link", { name: "Gallery" }).click(); // the key's session has ended too
  await card(page).getByLabel("API key").waitFor();
  await signIn(page, key);
  await page.getByRole("searchbox").waitFor();
  await card(page).waitFor({ state: "detached" });
}, { refusals: [401] });

await spec("session-in-chinese", "/console/gallery", async (page, { context }) => {
  await page.getByRole("button", { name: "筛选" }).waitFor();
  await endSessions(context);
  await page.getByRole("button", { name: "筛选" }).click();
  await page.getByRole("searchbox").fill("a");
  await page.keyboard.press("Enter");
  await card(page, "会话已结束").getByText("本页内容都还在").waitFor();
}, { locale: "zh-CN", refusals: [401] });

await spec("no-answer", "/console", async (page, { context }) => {
  await page.waitForLoadState("networkidle"); // what the page asks at first has been answered
  await page.locator("#prompt").fill("a boat");
  await context.setOffline(true);
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  await eventually(async () => assert.equal(await page.getByRole("alert").textContent(), "The server does not answer. It may be restarting: try again in a moment."));
  await context.setOffline(false);
  assert.ok(page.url().startsWith(`${base}/console`));
}, { refusals: ["net::ERR_INTERNET_DISCONNECTED"] });
