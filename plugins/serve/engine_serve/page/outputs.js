// The outputs of a run: scores as bars, small tensors as a table, large ones by their first values.

import { element } from "./dom.js";
import { isFloat } from "./datatypes.js";
import { countOf, shapeText, shown } from "./numbers.js";

const TOP = 5;
const MOST_CELLS = 256;
const MOST_COLUMNS = 16;
const FIRST = 24;

/** Return an output as elements. labels: of its classes, or nothing. */
export function outputElement(output, labels) {
  const { name, datatype, shape, values } = output;
  const title = element("h3", {}, element("b", {}, name), element("small", {}, ` ${datatype} ${shapeText(shape)}`));
  const made = element("div", { class: "output" }, title);
  if (isScores(output)) made.append(bars(values, labels));
  else if (countOf(shape) === 1) made.append(element("p", { class: "value" }, shown(values[0])));
  else if (countOf(shape) <= MOST_CELLS && rowOf(shape) <= MOST_COLUMNS) made.append(table(values, shape));
  else made.append(...summary(values));
  return made;
}

/** Return whether an output is the scores of one sample's classes. */
function isScores({ datatype, shape }) {
  const axes = shape.filter((size) => size !== 1);
  return isFloat(datatype) && axes.length === 1 && axes[0] >= TOP;
}

function bars(values, labels) {
  const scores = Array.from(values, Number);
  const sum = scores.reduce((total, score) => total + score, 0);
  const areParts = scores.every((score) => score >= 0 && score <= 1) && Math.abs(sum - 1) < 0.01;
  const most = Math.max(...scores.filter(Number.isFinite));
  const exponents = scores.map((score) => Math.exp(score - most));
  const total = exponents.reduce((all, exponent) => all + exponent, 0);
  const parts = areParts ? scores : exponents.map((exponent) => exponent / total);
  const best = scores.map((score, index) => index)
    .filter((index) => Number.isFinite(parts[index]))
    .sort((a, b) => parts[b] - parts[a] || a - b).slice(0, TOP);
  const lines = best.map((index) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${(100 * parts[index]).toFixed(2)}%`;
    return element(
      "tr", {},
      element("th", { scope: "row" }, labels?.[index] ?? `class ${index}`),
      element("td", { class: "track" }, bar),
      element("td", { class: "number" }, shown(scores[index])),
    );
  });
  const made = element("div", {}, element("table", { class: "bars" }, element("tbody", {}, ...lines)));
  if (!areParts) made.append(element("small", {}, "The bars are the softmax of the values, which are not parts of 1."));
  return made;
}

const rowOf = (shape) => shape.at(-1) ?? 1;

function table(values, shape) {
  const width = rowOf(shape);
  const rows = [];
  for (let at = 0; at < values.length; at += width) {
    const cells = Array.from(values.slice(at, at + width), (value) => element("td", {}, shown(value)));
    rows.push(element("tr", {}, ...cells));
  }
  return element("div", { class: "scroll" }, element("table", { class: "values" }, element("tbody", {}, ...rows)));
}

function summary(values) {
  const first = Array.from(values.slice(0, FIRST), shown).join(", ");
  const made = [element("p", { class: "first" }, `${first}${values.length > FIRST ? ", …" : ""}`)];
  if (typeof values[0] === "number") {
    let [least, most, sum] = [Infinity, -Infinity, 0];
    for (const value of values) {
      least = Math.min(least, value);
      most = Math.max(most, value);
      sum += value;
    }
    made.push(element("small", {}, `${values.length} values: least ${shown(least)}, mean ${shown(sum / values.length)}, most ${shown(most)}`));
  }
  return made;
}
