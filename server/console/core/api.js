// Calls of the server's routes. The browser adds the session's cookie; no script ever has a key.
import { BASE } from "./base.js";
import { t } from "./i18n.js";
import { parse, stringify } from "./json.js";
import { renewed, roleOf, turnOf } from "./session-end.js";

const SESSION = "/console/session"; // a refusal there is of the key that a person has just given

export class ApiError extends Error {
  constructor(status, body, requestId) {
    const error = body?.error ?? {};
    super(error.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
    this.requestId = requestId;
  }
}

// The server did not answer, or stopped in the middle.
export class Unreachable extends Error {
  constructor(cause) {
    super(t("The server does not answer. It may be restarting: try again in a moment."), { cause });
  }
}

function lost(error) {
  throw error instanceof TypeError ? new Unreachable(error) : error; // a caller that left gets its own error
}

async function fail(response) {
  const text = await response.text().catch(lost);
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    body = { error: { message: text.slice(0, 300) || response.statusText } };
  }
  throw new ApiError(response.status, body, response.headers.get("x-request-id"));
}

function encoded(body, headers) {
  if (body === undefined || body instanceof FormData) return { body, headers };
  return { body: stringify(body), headers: { "Content-Type": "application/json", ...headers } };
}

// The response of a call. `body` is sent as JSON, or as a form if it is one. If the session has ended, the call waits for
// the next one and is sent again. Throws ApiError and Unreachable.
export async function call(method, path, body, { headers = {}, signal, keepalive } = {}) {
  const sent = encoded(body, headers);
  const role = roleOf(path);
  for (;;) {
    const turn = turnOf(role);
    const response = await fetch(BASE + path, { method, signal, keepalive, ...sent }).catch(lost);
    if (response.ok) return response;
    if (response.status !== 401 || path === SESSION || !(await renewed(role, turn, signal))) return fail(response);
  }
}

export async function json(method, path, body, options) {
  const response = await call(method, path, body, options);
  return response.status === 204 ? null : parse(await response.text().catch(lost));
}

export const get = (path, options) => json("GET", path, undefined, options);

// A path with a query of those values that are set.
export function query(path, values) {
  const set = Object.entries(values).filter(([, value]) => value != null && value !== "");
  return set.length ? `${path}?${new URLSearchParams(set)}` : path;
}

// The events of a stream, as objects: {type, ...data}. Events without a name have the type "message".
export async function* events(method, path, body, { signal } = {}) {
  const response = await call(method, path, body, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    rest += value.replaceAll("\r", "");
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield parse(data);
    }
  }
}

// The path of a result on this server, whatever address its URL has: the console loads nothing from elsewhere.
export const resultName = (url) => new URL(url, location.href).pathname.split("/").pop();
export const resultPath = (url) => `${BASE}/cdn/${resultName(url)}`;
export const thumbnail = (url, width = 320) => `${BASE}/cdn/${resultName(url)}?w=${width}`;

// The file of a result, as a Blob.
export const readResult = async (url) => (await call("GET", `/cdn/${resultName(url)}`)).blob();
