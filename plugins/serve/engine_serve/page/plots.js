// Plots of the last two minutes: lines over time, drawn as SVG.

import { element, svg } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 110;
const LEFT = 44;
const BOTTOM = 18;
const SPAN_MS = 120_000;

/** Return a plot. lines: [name, key of a sample]. format: of a value. */
export function plot(title, lines, format) {
  const values = element("span", { class: "values" });
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const figure = element(
    "figure", { class: "plot" }, element("figcaption", {}, element("b", {}, title), values), drawing,
  );

  function draw(samples, now) {
    const last = samples.at(-1);
    values.replaceChildren(...lines.map(([name, key], index) =>
      element("span", { class: `line${index}` }, `${name} ${last ? format(last[key]) : "–"}`)));
    const all = samples.flatMap((sample) => lines.map(([, key]) => sample[key] ?? 0));
    const top = nice(Math.max(0, ...all));
    const x = (moment) => LEFT + (WIDTH - LEFT - 4) * (1 - (now - moment) / SPAN_MS);
    const y = (value) => 6 + (HEIGHT - BOTTOM - 6) * (1 - value / top);
    const axes = [0, top / 2, top].flatMap((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, value ? format(value) : "0"),
    ]);
    const times = [[120, "2 min ago", "start"], [60, "1 min", "middle"], [0, "now", "end"]].map(
      ([ago, text, anchor]) =>
        svg("text", { x: x(now - ago * 1000), y: HEIGHT - 4, "text-anchor": anchor }, text));
    const drawn = lines.map(([, key], index) =>
      svg("path", { class: `line${index}`, d: path(samples, key, x, y, now) }));
    drawing.replaceChildren(...axes, ...times, ...drawn);
    const said = lines.map(([name, key]) => `${name} ${last ? format(last[key]) : "unknown"}`);
    drawing.setAttribute("aria-label", `${title}: ${said.join(", ")} now`);
  }

  return { figure, draw };
}

/** Return a line's path; seconds without a value are a gap, and a value alone is a dot. */
function path(samples, key, x, y, now) {
  let text = "";
  let isOpen = false;
  for (const sample of samples) {
    const value = sample[key];
    if (value === null || now - sample.moment > SPAN_MS) {
      isOpen = false;
      continue;
    }
    const at = `${x(sample.moment).toFixed(1)} ${y(value).toFixed(1)}`;
    text += isOpen ? `L${at}` : `M${at}h0.01`;
    isOpen = true;
  }
  return text;
}

/** Return 1, 2 or 5 times a power of ten that is no less than a value. */
function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => value <= step * power * 1.0001);
}
