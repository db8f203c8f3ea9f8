// Elements of the document. Texts are set as text, never as HTML: names come from models' files.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Return a new element. options: properties, `class`, `on` (listeners) and attributes. */
export function element(tag, options = {}, ...children) {
  return filled(document.createElement(tag), options, children);
}

/** Return a new element of SVG; options are attributes. */
export function svg(tag, options = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), options, children);
}

function filled(made, options, children) {
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === false) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else if (key === "value" || key === "checked") {
      made[key] = value;
    } else {
      made.setAttribute(key, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Return a label with its field. */
export function labelled(text, field, note = "") {
  const label = element("label", { class: "field" }, element("span", {}, text), field);
  if (note) label.append(element("small", {}, note));
  return label;
}

/** Return a select of [value, text] pairs. */
export function choice(pairs, chosen, changed) {
  const made = element("select", changed ? { on: { change: changed } } : {});
  for (const [value, text] of pairs) {
    made.append(element("option", { value, selected: value === chosen }, text));
  }
  return made;
}
