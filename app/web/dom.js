// Elements and text. Text of documents, models and file names only ever becomes text nodes.

// control and direction-changing characters: shown as what they are, never obeyed
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

export const find = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

export function textNodes(text) {
  const nodes = [];
  let position = 0;
  for (const match of text.matchAll(ODD)) {
    nodes.push(document.createTextNode(text.slice(position, match.index)));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(element("span", { className: "odd" }, `U+${code}`));
    position = match.index + match[0].length;
  }
  nodes.push(document.createTextNode(text.slice(position)));
  return nodes;
}

// The service counts characters as code points; JavaScript counts UTF-16 units.
export const slice = (text, start, end) => [...text].slice(start, end).join("");
