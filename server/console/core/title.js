// The title of the browser's tab: the page, and before it how far the work is.
let page = "Darkroom";
let progress = "";

const show = () => {
  document.title = `${progress}${page}`;
};

export function setPageTitle(title) {
  page = `${title} · Darkroom`;
  show();
}

// `text` stands before the page's name; "" is nothing.
export function setProgress(text) {
  progress = text ? `${text} ` : "";
  show();
}
