// Markdown of a model's answer, as elements. No text becomes markup of the page: HTML stays as it was written, links lead
// to web addresses only, and an image is a link, since the console loads nothing from elsewhere.
import { html } from "../core/html.js";
import { lexer } from "../vendor/marked.js";

const ENTITY = /&(?:#\d+|#x[\da-f]+|\w+);/gi;
const decoded = (text) => text.replace(ENTITY, (entity) => new DOMParser().parseFromString(entity, "text/html").body.textContent);

function Anchor({ href, children }) {
  const isWeb = /^(https?:|mailto:)/i.test(href);
  return isWeb ? html`<a href=${href} target="_blank" rel="noopener noreferrer">${children}</a>` : html`${children}`;
}

function Rows({ header, rows, align }) {
  const cells = (as, row) => row.map((cell, index) => html`<${as} key=${index} scope=${as === "th" ? "col" : undefined} style=${{ textAlign: align[index] ?? "start" }}>${inside(cell)}</${as}>`);
  return html`<div class="wide" tabindex="0"><table><thead><tr>${cells("th", header)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${index}>${cells("td", row)}</tr>`)}</tbody></table></div>`;
}

function Items({ ordered, start, items }) {
  const as = ordered ? "ol" : "ul";
  return html`<${as} start=${ordered ? start : undefined}>${items.map((item, index) => html`<li key=${index}>${inside(item)}</li>`)}</${as}>`;
}

const ELEMENTS = {
  heading: (token) => html`<${`h${Math.min(6, token.depth + 2)}`}>${inside(token)}</>`,
  paragraph: (token) => html`<p>${inside(token)}</p>`,
  blockquote: (token) => html`<blockquote>${inside(token)}</blockquote>`,
  strong: (token) => html`<strong>${inside(token)}</strong>`,
  em: (token) => html`<em>${inside(token)}</em>`,
  del: (token) => html`<del>${inside(token)}</del>`,
  link: (token) => html`<${Anchor} href=${token.href}>${inside(token)}</${Anchor}>`,
  image: (token) => html`<${Anchor} href=${token.href}>${decoded(token.text) || token.href}</${Anchor}>`,
  list: (token) => html`<${Items} ...${token} />`,
  table: (token) => html`<${Rows} ...${token} />`,
  checkbox: (token) => (token.checked ? "☑ " : "☐ "),
  code: (token) => html`<pre class="mono" tabindex="0">${token.text}</pre>`,
  codespan: (token) => html`<code>${token.text}</code>`,
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  html: (token) => (/^<br\s*\/?>$/i.test(token.text.trim()) ? html`<br />` : token.text),
  text: (token) => (token.tokens ? inside(token) : decoded(token.text)),
  escape: (token) => token.text,
};

// What has no element here is a space or a definition.
const inside = ({ tokens }) => tokens.map((token) => ELEMENTS[token.type]?.(token));

export const Markdown = ({ text }) => html`<div class="prose">${inside({ tokens: lexer(text) })}</div>`;
