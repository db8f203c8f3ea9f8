// The form that runs a model: a part for each input.

import { choice, element, labelled } from "./dom.js";
import { encode, isFloat, isKnown } from "./datatypes.js";
import { layoutsOf } from "./image.js";
import { imageField } from "./image_field.js";
import { countOf, readShape, readValues, shapeText } from "./numbers.js";

const MOST = 100_000_000; // values; more is a mistake in a shape

/** Fill `form` for a model. run: called with the inputs' values and how often to run. */
export function fill(form, model, run) {
  const parts = model.inputs.map(inputPart);
  const times = element("input", { type: "number", min: 1, max: 1000, value: 1, class: "times" });
  const button = element("button", { class: "primary" }, "Run");
  const said = element("p", { class: "error", role: "alert" });
  form.replaceChildren(
    ...parts.map((part) => part.element),
    element("div", { class: "go" }, button, labelled("times", times)), said,
  );
  form.onsubmit = async (event) => {
    event.preventDefault();
    said.textContent = "";
    button.disabled = true;
    try {
      const inputs = parts.map((part) => part.read());
      await run(inputs, Math.min(1000, Math.max(1, Number(times.value) || 1)));
    } catch (error) {
      said.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
}

function inputPart(input) {
  const open = input.shape.some((size) => size < 0);
  const first = input.shape.map((size) => (size < 0 ? 1 : size)).join(", ");
  const shape = element("input", { value: first, spellcheck: "false", on: { input: () => image?.redraw() } });
  const sizes = () => (open ? readShape(shape.value, input.shape) : input.shape);
  const isNumeric = isKnown(input.datatype) && input.datatype !== "BYTES";
  const canBeImage = isNumeric && input.datatype !== "BOOL" && layoutsOf(input.shape).length > 0;
  const image = canBeImage ? imageField(input, sizes, fitSizes) : null;
  const text = element("textarea", { rows: 3, spellcheck: "false", placeholder: input.datatype === "BYTES" ? "a text, or JSON: [\"one\", \"two\"]" : "1 2 3, or JSON: [[1, 2, 3]]", "aria-label": `values of ${input.name}` });

  /** Fill open axes with the size of a picture. */
  function fitSizes(layout, picture) {
    const now = sizes();
    const of = { H: picture.height, W: picture.width, C: 3, N: 1 };
    shape.value = now
      .map((size, axis) => (input.shape[axis] < 0 && size === 1 ? of[layout[axis]] : size))
      .join(", ");
  }

  const kinds = [
    ...(image ? [["image", "a picture"]] : []),
    ["text", input.datatype === "BYTES" ? "text" : "numbers"],
    ...(isNumeric ? [["zeros", "zeros"], ["random", input.datatype === "BOOL" ? "random" : isFloat(input.datatype) ? "random, 0 to 1" : "random, 0 to 9"]] : []),
  ];
  const panel = element("div");
  const kind = choice(kinds, kinds[0][0], showPanel);
  function showPanel() {
    panel.replaceChildren(...({ image: [image?.element], text: [text] }[kind.value] ?? []));
  }
  showPanel();

  function read() {
    try {
      if (!isKnown(input.datatype)) throw new Error(`this page cannot write ${input.datatype}`);
      const { values, shape } = chosen();
      const { name, datatype } = input;
      return { name, datatype, shape, bytes: encode(datatype, values) };
    } catch (error) {
      throw new Error(`input "${input.name}": ${error.message}`);
    }
  }

  function chosen() {
    if (kind.value === "text") {
      const found = readValues(text.value, input.datatype === "BYTES");
      if (open && found.shape) shape.value = found.shape.join(", ");
      return counted(found.values, sizes());
    }
    const wanted = sizes();
    if (countOf(wanted) > MOST) throw new Error(`${shapeText(wanted)} is too large for this page`);
    if (kind.value === "image") return counted(image.read(), sizes());
    const value = kind.value === "zeros" ? () => 0
      : input.datatype === "BOOL" ? () => Math.random() < 0.5
      : isFloat(input.datatype) ? Math.random
      : () => Math.floor(Math.random() * 10);
    return { values: Array.from({ length: countOf(wanted) }, value), shape: wanted };
  }

  const legend = element("legend", {}, element("b", {}, input.name), ` ${input.datatype} ${shapeText(input.shape)}`);
  return {
    element: element(
      "fieldset", {}, legend,
      element("div", { class: "fields" }, labelled("from", kind), open ? labelled("shape", shape) : null),
      panel,
    ),
    read,
  };
}

function counted(values, shape) {
  const wanted = countOf(shape);
  if (values.length !== wanted) {
    throw new Error(`shape ${shapeText(shape)} takes ${wanted} values, got ${values.length}`);
  }
  return { values, shape };
}
