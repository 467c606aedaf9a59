// Signing in with an account of a provider, again over a page whose session has ended, as somebody without a group, and
// out again: node oidc.mjs BROWSER BASE_URL KEY ADMIN_KEY
import { admin, api, assert, base, endSessions, eventually, spec } from "./harness.mjs";

// The provider's own pages: a name, any password, and consent.
async function signInAs(page, name) {
  await page.locator("input[name=login]").fill(name);
  await page.locator("input[name=password]").fill("any");
  await page.getByRole("button", { name: "Sign-in" }).click();
  await page.getByRole("button", { name: "Continue" }).click();
}

await spec("oidc", "/console/gallery", async (page, { context, looks, shot }) => {
  // the provider's own pages ask for a font of another host
  await context.route((url) => url.hostname !== "127.0.0.1", (route) => route.fulfill({ body: "" }));
  const link = page.getByRole("link", { name: "Sign in with 127.0.0.1" });
  await link.waitFor();
  await looks("sign in with a provider");
  await shot();
  await link.click();
  await signInAs(page, "anna");
  await page.getByText("Key anna").waitFor(); // back on the page
  assert.equal(page.url(), `${base}/console/gallery`);
  await page.getByRole("link", { name: "Keys" }).click(); // she is an operator
  await page.getByText("anna at http://127.0.0.1").waitFor();
  const { body } = await api("GET", "/admin/keys", undefined, admin);
  assert.deepEqual(body.data.filter((one) => one.name === "anna").map((one) => [one.groups, one.team]), [[["alpha-image-per-call"], "design"]]);

  await page.getByRole("link", { name: "Generate", exact: true }).click();
  await page.locator("#prompt").fill("a boat that is not lost");
  await endSessions(context);
  await page.getByRole("button", { name: /^Generate · CNY/ }).click();
  const card = page.getByRole("dialog", { name: "Your session has ended" });
  const opened = context.waitForEvent("page");
  await card.getByRole("link", { name: "Sign in with 127.0.0.1" }).click();
  const beside = await opened;
  const gone = beside.waitForEvent("close"); // the provider still knows her
  await gone;
  await card.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Open a boat that is not lost" }).waitFor();
  assert.equal(await page.locator("#prompt").inputValue(), "a boat that is not lost");
  const charged = (await api("GET", "/admin/usage?by=key,team", undefined, admin)).body.data.find((row) => row.key_name === "anna");
  assert.deepEqual([charged.team_name, charged.calls], ["design", 1]);

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("button", { name: "Yes, sign me out" }).click(); // of the provider, too
  await link.waitFor();
  await link.click();
  await signInAs(page, "a stranger");
  await eventually(async () => assert.match(await page.getByRole("alert").textContent(), /in no group that may use this server/));
  assert.equal((await context.request.get(`${base}/v1/models`)).status(), 401);
}, { signedIn: false, refusals: [401], elsewhere: /^http:\/\/127\.0\.0\.1:|css\?family=/ });
