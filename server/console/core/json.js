// JSON whose integers are exact. JavaScript's own numbers end at 2^53, and seeds may have 63 bits: larger ones are BigInt.
const isLarge = (value) => typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);

// The third argument has the digits as they were sent. A browser that lacks it gets null in place of a rounded number.
const exact = (_, value, context) => {
  if (!isLarge(value)) return value;
  return /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : null;
};

export const parse = (text) => JSON.parse(text, exact);

export function stringify(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map((each) => stringify(each ?? null)).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).filter(([, each]) => each !== undefined);
  return `{${members.map(([name, each]) => `${JSON.stringify(name)}:${stringify(each)}`).join(",")}}`;
}

// The number that a field's text is, without rounding an integer.
export function toNumber(text) {
  const number = Number(text);
  return isLarge(number) && /^\s*-?\d+\s*$/.test(text) ? BigInt(text.trim()) : number;
}
