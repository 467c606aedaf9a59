// Calls of the server's routes. The browser adds the session's cookie; no script ever has a key.

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

async function fail(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    body = { error: { message: text.slice(0, 300) || response.statusText } };
  }
  throw new ApiError(response.status, body, response.headers.get("x-request-id"));
}

// The response of a call. `body` is sent as JSON, or as a form if it is one. Throws ApiError.
export async function call(method, path, body, { headers = {}, signal } = {}) {
  const isForm = body instanceof FormData;
  const response = await fetch(path, {
    method,
    signal,
    headers: body !== undefined && !isForm ? { "Content-Type": "application/json", ...headers } : headers,
    body: body === undefined || isForm ? body : JSON.stringify(body),
  });
  return response.ok ? response : fail(response);
}

export async function json(method, path, body, options) {
  const response = await call(method, path, body, options);
  return response.status === 204 ? null : response.json();
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
    const { value, done } = await reader.read();
    if (done) return;
    rest += value.replaceAll("\r", "");
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

// The path of a result on this server, whatever address its URL has: the console loads nothing from elsewhere.
export const resultName = (url) => new URL(url, location.href).pathname.split("/").pop();
export const resultPath = (url) => `/cdn/${resultName(url)}`;
export const thumbnail = (url, width = 320) => `/cdn/${resultName(url)}?w=${width}`;
