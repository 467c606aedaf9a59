// Uses the console as a person would, in Chromium, and prints the observations as JSON.
//   node console.mjs CHROMIUM BASE_URL KEY [SCREENSHOT.png]
import { chromium } from "playwright-core";

const [executablePath, base, key, screenshot] = process.argv.slice(2);
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", ...QUIET] });
const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
page.setDefaultTimeout(240_000);

const result = { origins: [], errors: [], images: [] };
page.on("request", (request) => result.origins.push(new URL(request.url()).origin));
page.on("pageerror", (error) => result.errors.push(String(error)));

async function generate(prompt) {
  await page.fill("#prompt", prompt);
  await page.click("#go");
  await page.waitForFunction(() => !document.querySelector("#go").disabled);
  const image = await page.locator(".card img").first().evaluate(async (image) => {
    await image.decode();
    return { width: image.naturalWidth, height: image.naturalHeight, alt: image.alt };
  });
  result.images.push({ message: await page.textContent("#message"), ...image });
}

await page.goto(`${base}/console`);
await page.fill("#key", "sk-dr-wrong");
await page.press("#key", "Tab");
await page.waitForSelector("#message.bad");
result.refusedKey = await page.textContent("#message");

await page.fill("#key", key);
await page.press("#key", "Tab");
await page.waitForSelector("#model:enabled");
result.models = await page.locator("#model option").count();
await page.selectOption("#model", "beta-2.5-flash-image-count");
result.qualityHidden = await page.locator("#quality-row").isHidden();
await page.getByRole("button", { name: "16:9", exact: true }).click();
await generate("a red boat at sunset");
await page.getByRole("button", { name: "Use as reference" }).first().click();
await generate("make it night");

await page.fill("#prompt", "a boat");
await page.click("summary");
await page.fill("#guidance", "9");
await page.click("summary"); // folded away again
await page.click("#go");
await page.waitForSelector("#message.bad");
result.refusal = await page.textContent("#message");
result.focus = await page.evaluate(() => document.activeElement.id);
result.visible = await page.locator("#guidance").isVisible();
await page.fill("#guidance", "");
await page.click("summary");

await page.getByRole("button", { name: "remove reference 1" }).click();
result.references = await page.locator("#references figure").count();
await page.reload();
await page.waitForSelector("#model:enabled");
result.stored = await page.evaluate(() => ({ ...localStorage, ...sessionStorage }));
result.visibleCookies = await page.evaluate(() => document.cookie);
result.cookies = (await page.context().cookies()).map(({ httpOnly, sameSite }) => ({ httpOnly, sameSite }));

if (screenshot) {
  for (const [prompt, ratio] of [["a red boat at sunset", "1:1"], ["a yellow house in the snow, at night", "1:1"]]) {
    await page.getByRole("button", { name: ratio, exact: true }).click();
    await generate(prompt);
  }
  await page.evaluate(() => document.activeElement.blur());
  await page.screenshot({ path: screenshot });
}
await page.getByRole("button", { name: "Forget" }).click();
await page.waitForSelector("#key:visible");
result.signedOut = await page.locator("#model").isDisabled();
await browser.close();
result.origins = [...new Set(result.origins)];
console.log(JSON.stringify(result));
