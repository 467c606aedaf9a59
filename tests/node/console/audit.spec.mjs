// Audit: who changed what.
import { asOperator, assert, eventually, spec } from "./harness.mjs";

const made = await asOperator("POST", "/admin/keys", { name: "audited" });

await spec("audit", "/console/audit", async (page, { looks, shot }) => {
  const row = page.getByRole("region", { name: "Audit" }).getByRole("row").filter({ hasText: made.body.id });
  await eventually(async () => assert.match(await row.first().textContent(), /key\.create/));
  await looks();
  await shot();
});
