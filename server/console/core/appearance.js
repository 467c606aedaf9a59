// The language and the colours of the console, in this browser: as a person chooses, else as the system has them.
import { createStore } from "./store.js";

export const theme = createStore(read("theme"));
export const chosenLanguage = read("language");
theme.subscribe(showTheme);
showTheme(theme.get());

function showTheme(value) {
  document.documentElement.style.colorScheme = value;
}

export function chooseTheme(value) {
  keep("theme", value);
  theme.set(value);
}

// The texts are read once, so the page is loaded again, which keeps what is typed and drawn.
export function chooseLanguage(value) {
  keep("language", value);
  location.reload();
}

// A browser may have its storage closed to pages: it shows what the system has.
function read(name) {
  try {
    return localStorage.getItem(`darkroom-${name}`) ?? "";
  } catch {
    return "";
  }
}

function keep(name, value) {
  try {
    if (value) localStorage.setItem(`darkroom-${name}`, value);
    else localStorage.removeItem(`darkroom-${name}`);
  } catch {
    // nothing keeps it: it holds until the page is loaded again
  }
}
