// Ledger: who spent what last, equal in the table, the CSV and an invoice; and books that agree.
import { api, asOperator, assert, eventually, spec } from "./harness.mjs";

await api("POST", "/v1/images/generations", { model: "beta-2.5-flash-image-count", prompt: "a boat", response_format: "url" });

await spec("ledger", "/console/ledger", async (page, { looks, shot }) => {
  await eventually(async () => {
    await page.reload(); // a call of an earlier spec, whose page is gone, may be charged meanwhile
    await page.locator(".uplot canvas").waitFor();
    const { body: usage } = await asOperator("GET", "/admin/usage?by=key");
    const total = Number(usage.total.amount).toFixed(2);
    const table = page.getByRole("region", { name: "Usage" });
    await table.getByRole("row").last().getByText("Total").waitFor();
    assert.match(await table.getByRole("row").last().textContent(), new RegExp(`Total.*CNY\\s${total}`));
    const csv = await page.request.get(await page.getByRole("link", { name: "Download CSV" }).evaluate((link) => link.href));
    const [head, ...rows] = (await csv.text()).trim().split(/\r?\n/);
    const amount = head.split(",").indexOf("amount");
    assert.equal(rows.reduce((sum, row) => sum + Number(row.split(",")[amount]), 0).toFixed(2), total);
  });
  await page.getByRole("button", { name: "Check the books" }).click();
  await page.getByText("Charges, holds and files agree.").waitFor();
  await shot();

  await page.getByRole("combobox", { name: "Key" }).selectOption({ label: "dev" });
  const invoice = page.getByRole("region", { name: "Invoice", exact: true }).first();
  await invoice.getByText("Invoice for dev").waitFor();
  await looks();
});
