// A Chromium that several specs connect to: prints its address, and ends with its standard input.
//   node browser.mjs
// It comes with an npm package, packed; CHROMIUM names another one. It is unpacked once, beside the package.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { chromium } from "playwright-core";

const NODE_MODULES = fileURLToPath(new URL("../node_modules/", import.meta.url));
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];

async function unpacked() {
  const folder = join(NODE_MODULES, ".browser");
  mkdirSync(folder, { recursive: true });
  process.env.TMPDIR = folder; // where the package unpacks, read when it is imported
  const { default: packed, inflate } = await import("@sparticuz/chromium");
  const executablePath = await packed.executablePath();
  const env = { ...process.env };
  if (execFileSync("ldd", [executablePath]).includes("not found")) {
    const libraries = join(folder, "al2023", "lib"); // the package has the libraries that a bare machine lacks
    if (!existsSync(libraries)) await inflate(join(NODE_MODULES, "@sparticuz", "chromium", "bin", "al2023.tar.br"));
    env.LD_LIBRARY_PATH = [libraries, env.LD_LIBRARY_PATH].filter(Boolean).join(":");
  }
  if (!existsSync("/etc/fonts/fonts.conf")) env.FONTCONFIG_PATH = join(folder, "fonts");
  return { executablePath, env };
}

const options = process.env.CHROMIUM ? { executablePath: process.env.CHROMIUM } : await unpacked();
const server = await chromium.launchServer({ ...options, host: "127.0.0.1", args: ["--no-sandbox", "--disable-gpu", ...QUIET] });
console.log(server.wsEndpoint());
process.stdin.on("end", () => server.close()).resume();
