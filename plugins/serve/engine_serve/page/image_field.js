// The part of the form that takes a picture: chosen, dropped or pasted, with its scaling.

import { choice, element, labelled } from "./dom.js";
import { isFloat } from "./datatypes.js";
import { channelsOf, decoded, draw, layoutsOf, readNumbers, values } from "./image.js";

const IMAGENET = { white: "1", mean: "0.485, 0.456, 0.406", std: "0.229, 0.224, 0.225" };

/** Return {element, read}. input: its metadata. sizes: reads the shape that the form has. */
export function imageField(input, sizes, setSizes) {
  let picture = null;
  const layouts = layoutsOf(input.shape);
  const canvas = element("canvas", { width: 1, height: 1, hidden: true, role: "img", "aria-label": "the picture as the model gets it" });
  const hint = element("span", {}, "Drop a picture here, or choose a file");
  const file = element("input", { type: "file", accept: "image/*", "aria-label": `picture for ${input.name}`, on: { change: () => file.files[0] && take(file.files[0]) } });
  const said = element("p", { class: "error", role: "alert" });
  const drop = element("div", { class: "drop" }, canvas, element("label", { class: "file" }, hint, file));
  const layout = choice(layouts.map((each) => [each, each]), layouts[0], redraw);
  const fit = choice([["stretch", "stretch"], ["crop", "crop the middle"], ["pad", "fit, white border"]], "stretch", redraw);
  const order = choice([["RGB", "RGB"], ["BGR", "BGR"]], "RGB");
  const white = element("input", { inputmode: "decimal", value: isFloat(input.datatype) ? "1" : "255", size: 6 });
  const mean = element("input", { value: "0", size: 16 });
  const std = element("input", { value: "1", size: 16 });
  const inverted = element("input", { type: "checkbox" });
  const presets = [
    ["0 to 1", { white: "1", mean: "0", std: "1" }],
    ["0 to 255", { white: "255", mean: "0", std: "1" }],
    ["−1 to 1", { white: "1", mean: "0.5", std: "0.5" }],
    ["ImageNet", IMAGENET],
  ].map(([text, set]) => element("button", { type: "button", on: { click: () => {
    white.value = set.white;
    mean.value = set.mean;
    std.value = set.std;
  } } }, text));

  async function take(taken) {
    said.textContent = "";
    try {
      picture = await decoded(taken);
      hint.textContent = `${taken.name}, ${picture.width} × ${picture.height}`;
      setSizes(layout.value, picture);
      redraw();
    } catch (error) {
      picture = null;
      canvas.hidden = true;
      said.textContent = error.message;
    }
  }

  function redraw() {
    if (!picture) return;
    try {
      const [height, width] = ["H", "W"].map((axis) => sizes()[layout.value.indexOf(axis)]);
      draw(picture, canvas, height, width, fit.value);
      canvas.hidden = false;
      said.textContent = "";
    } catch (error) {
      said.textContent = error.message;
    }
  }

  function read() {
    if (!picture) throw new Error("there is no picture yet");
    redraw();
    const channels = channelsOf(layout.value, sizes());
    const scaling = {
      white: readNumbers(white.value, 1, "white")[0],
      mean: readNumbers(mean.value, channels, "mean"),
      std: readNumbers(std.value, channels, "std"),
      order: order.value,
      isInverted: inverted.checked,
    };
    if (scaling.std.includes(0)) throw new Error("std: 0 cannot divide");
    return values(canvas, layout.value, channels, scaling, isFloat(input.datatype));
  }

  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });

  const isColour = channelsOf(layouts[0], input.shape) >= 3;
  const made = element(
    "div", { class: "image" }, drop, said,
    element("div", { class: "presets", role: "group", "aria-label": "range of values" }, element("span", {}, "Values"), ...presets),
    element(
      "div", { class: "fields" },
      labelled("white is", white), labelled("mean", mean), labelled("std", std),
      labelled("size", fit), labelled("layout", layout), isColour ? labelled("channels", order) : null,
      element("label", { class: "check" }, inverted, "invert"),
    ),
    element("small", {}, "value = (pixel ÷ 255 × white − mean) ÷ std"),
  );
  return { element: made, read, redraw };
}
