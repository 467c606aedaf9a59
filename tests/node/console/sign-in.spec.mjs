// Signing in: a wrong key, a session without a trace in the page, an operator's, Chinese, and out again.
import { assert, base, eventually, key, spec } from "./harness.mjs";

await spec("sign-in", "/console", async (page, { looks, shot, context }) => {
  await page.getByLabel("API key").fill("sk-dr-wrong");
  await page.keyboard.press("Enter");
  await eventually(async () => assert.match(await page.getByRole("alert").textContent(), /Incorrect API key/));
  await looks();
  await shot("sign-in", { width: "phone", theme: "light" });
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.locator("#prompt").waitFor();
  const cookies = (await context.cookies()).map(({ name, httpOnly, sameSite }) => ({ name, httpOnly, sameSite }));
  assert.deepEqual(cookies, [{ name: "darkroom-session", httpOnly: true, sameSite: "Strict" }]);

  await page.getByRole("link", { name: "Keys" }).click(); // a key is no operator
  await page.getByLabel("Admin key").waitFor();
  await eventually(async () => assert.equal(await page.title(), "Keys · Darkroom"));
  await eventually(async () => assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1"));

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("button", { name: "Sign out" }).waitFor({ state: "hidden" }); // the click ends before its request does
  assert.equal((await page.request.get(`${base}/v1/models`)).status(), 401);
  await page.goto(`${base}/console/nothing`);
  await eventually(async () => assert.equal(await page.getByRole("heading", { level: 1 }).textContent(), "No such page"));
}, { signedIn: false, refusals: [401] });

await spec("chinese", "/console", async (page, { looks, shot }) => {
  await page.getByRole("button", { name: /^生成 · CNY/ }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "zh-CN");
  await looks();
  await shot("generate-chinese", { theme: "light" });
}, { locale: "zh-CN" });
