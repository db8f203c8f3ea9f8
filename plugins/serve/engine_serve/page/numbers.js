// Values as people write and read them: JSON or plain text to values with a shape, and back.

/** Return sizes as text: an open axis is "?". */
export const shapeText = (shape) =>
  shape.length ? shape.map((size) => (size < 0 ? "?" : size)).join(" × ") : "scalar";

export const countOf = (shape) => shape.reduce((product, size) => product * size, 1);

/** Return the sizes in a text as "1, 3, 224, 224". Throws where it does not fit `wanted`. */
export function readShape(text, wanted) {
  const sizes = text.trim() ? text.trim().split(/[\s,x×]+/).filter(Boolean).map(Number) : [];
  const fits =
    sizes.length === wanted.length &&
    sizes.every((size, axis) => Number.isInteger(size) && size >= 0 &&
      (wanted[axis] < 0 || wanted[axis] === size));
  if (!fits) throw new Error(`expected a shape as ${shapeText(wanted)}, got "${text}"`);
  return sizes;
}

/**
 * Return {values, shape} of a text: JSON, or values with spaces or commas between.
 * shape: null where the text is flat. isText: values are texts. Throws an Error.
 */
export function readValues(text, isText) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error("there are no values");
  if (!/^[[{"]/.test(trimmed)) {
    if (isText) return { values: [text], shape: null };
    return { values: trimmed.split(/[\s,]+/).filter(Boolean).map(readNumber), shape: null };
  }
  const found = parsed(trimmed);
  if (!Array.isArray(found)) return { values: [checked(found, isText)], shape: null };
  const shape = [];
  for (let level = found; Array.isArray(level); level = level[0]) shape.push(level.length);
  const values = [];
  flatten(found, shape, 0, values, isText);
  return { values, shape: shape.length > 1 ? shape : null };
}

function flatten(level, shape, axis, values, isText) {
  if (!Array.isArray(level) || level.length !== shape[axis]) {
    const got = Array.isArray(level) ? `${level.length} values` : `${level}`;
    throw new Error(`the lists are not of one length: expected ${shape[axis]} values, got ${got}`);
  }
  for (const inner of level) {
    if (axis + 1 < shape.length) flatten(inner, shape, axis + 1, values, isText);
    else values.push(checked(inner, isText));
  }
}

function checked(value, isText) {
  const fits = isText ? typeof value === "string" : ["number", "boolean", "bigint"].includes(typeof value);
  if (!fits) {
    throw new Error(`expected ${isText ? "texts" : "numbers"}, got ${JSON.stringify(value)}`);
  }
  return value;
}

/** Return JSON, in which whole numbers may be longer than a double holds. */
function parsed(text) {
  const big = (key, value, context) => {
    const source = context?.source ?? "";
    return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source)
      ? BigInt(source)
      : value;
  };
  try {
    return JSON.parse(text, big);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}`);
  }
}

function readNumber(word) {
  if (word === "true" || word === "false") return word === "true";
  if (/^-?\d+$/.test(word)) {
    return Number.isSafeInteger(Number(word)) ? Number(word) : BigInt(word);
  }
  const special = { nan: NaN, inf: Infinity, "-inf": -Infinity }[word.toLowerCase()];
  const number = special ?? Number(word);
  if (Number.isNaN(number) && special === undefined) throw new Error(`"${word}" is not a number`);
  return number;
}

/** Return a number as a few digits. */
export function shown(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(5))) : value.toExponential(3);
}

/** Return milliseconds as text. */
export function shownMs(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${(value / 1000).toPrecision(3)} s`;
  return `${Number(value.toPrecision(value >= 100 ? 3 : 2))} ms`;
}

/** Return a number of bytes as text. */
export function shownBytes(count) {
  if (count < 1000) return `${count} bytes`;
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}
