// The path below which a browser finds the server: "" or, behind a proxy, for example "/darkroom".
export const BASE = new URL("../..", import.meta.url).pathname.replace(/\/$/, "");
