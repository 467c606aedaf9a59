// A ZIP archive of files that are packed already, such as images: they are stored as they are.
const TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  let value = number;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

export function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 0xff] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

// Numbers as [value, bytes], little end first.
function packed(...numbers) {
  const view = new DataView(new ArrayBuffer(numbers.reduce((sum, [, size]) => sum + size, 0)));
  let place = 0;
  for (const [value, size] of numbers) {
    if (size === 4) view.setUint32(place, value, true);
    else view.setUint16(place, value, true);
    place += size;
  }
  return new Uint8Array(view.buffer);
}

const UTF8 = 0x0800; // the names' encoding
const NO_DATE = [[0, 2], [33, 2]]; // midnight of 1 January 1980
const MOST_BYTES = 0xffffffff;

// The archive of `files`, {name, blob}, as a Blob. Throws for more than 4 GiB, which the format does not have.
export async function zip(files) {
  const parts = [];
  const entries = [];
  let place = 0;
  for (const { name, blob } of files) {
    const bytes = new Uint8Array(await blob.arrayBuffer());
    const text = new TextEncoder().encode(name);
    const about = [[20, 2], [UTF8, 2], [0, 2], ...NO_DATE, [crc32(bytes), 4], [bytes.length, 4], [bytes.length, 4], [text.length, 2], [0, 2]];
    const head = packed([0x04034b50, 4], ...about);
    entries.push(packed([0x02014b50, 4], [20, 2], ...about, [0, 2], [0, 2], [0, 2], [0, 4], [place, 4]), text);
    parts.push(head, text, blob);
    place += head.length + text.length + bytes.length;
  }
  const size = entries.reduce((sum, each) => sum + each.length, 0);
  if (place + size > MOST_BYTES) throw new Error("more than 4 GiB");
  return new Blob([...parts, ...entries, packed([0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [place, 4], [0, 2])], { type: "application/zip" });
}

// Lets the browser save a file.
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
