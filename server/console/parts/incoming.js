// Images that a person chooses, drops on the page or pastes.
import { useEffect } from "../core/html.js";
import { t } from "../core/i18n.js";

export const IMAGE_TYPES = "image/png,image/jpeg,image/webp,image/avif,image/gif";

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

const toDataUri = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

// Throws, in words, for a file that the browser can't show, whatever its name is.
export async function checkImage(file) {
  try {
    (await createImageBitmap(file)).close();
  } catch (cause) {
    throw new Error(t("{name} is no image that can be read. Take a PNG, JPEG, WebP, AVIF or GIF file.", { name: file.name }), { cause });
  }
}

// The data URI of an image. Throws as `checkImage` does.
export async function readImage(file) {
  await checkImage(file);
  return toDataUri(file);
}

// The page takes files that are dropped anywhere on it or pasted. Text that is pasted with an image goes first.
export function useIncoming(onFiles) {
  useEffect(() => {
    const drop = (event) => hasFiles(event) && onFiles([...event.dataTransfer.files]);
    const paste = (event) => {
      if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      onFiles([...event.clipboardData.files]);
    };
    addEventListener("drop", drop);
    addEventListener("paste", paste);
    return () => {
      removeEventListener("drop", drop);
      removeEventListener("paste", paste);
    };
  });
}

// A file that is dropped beside its target would be opened in place of the page.
export function keepPage() {
  const stay = (event) => hasFiles(event) && event.preventDefault();
  addEventListener("dragover", stay);
  addEventListener("drop", stay);
}
