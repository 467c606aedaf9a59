// Queue: a call appears while it runs, and an operator cancels it.
import { api, assert, eventually, spec } from "./harness.mjs";

await spec("queue", "/console/queue", async (page, { looks, shot }) => {
  await page.getByText("live", { exact: true }).waitFor();
  const { body: job } = await api("POST", "/v1/images/generations", { model: "beta-3-pro-image-4k-count", prompt: "a tall tower", n: 4, background: true });
  await page.getByTitle(job.id).waitFor(); // without a reload
  await shot();
  await page.getByRole("button", { name: `Cancel ${job.id}` }).click();
  await page.getByTitle(job.id).waitFor({ state: "detached" });
  await eventually(async () => assert.equal((await api("GET", `/v1/images/jobs/${job.id}`)).body.state, "cancelled"));
  await eventually(async () => assert.match(await page.getByRole("region", { name: "Workers" }).textContent(), /imageready/));
  await looks();
});
