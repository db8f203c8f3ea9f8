// Values of the protocol's element types as bytes, little-endian as on the wire.

const PLAIN = {
  BOOL: Uint8Array, UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array,
  UINT64: BigUint64Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array,
  INT64: BigInt64Array, FP32: Float32Array, FP64: Float64Array,
};
const LEAST = { INT8: -(2 ** 7), INT16: -(2 ** 15), INT32: -(2 ** 31), INT64: -(2n ** 63n) };
const MOST = {
  BOOL: 1, UINT8: 2 ** 8 - 1, UINT16: 2 ** 16 - 1, UINT32: 2 ** 32 - 1, UINT64: 2n ** 64n - 1n,
  INT8: 2 ** 7 - 1, INT16: 2 ** 15 - 1, INT32: 2 ** 31 - 1, INT64: 2n ** 63n - 1n,
};

export const isFloat = (datatype) => ["FP16", "BF16", "FP32", "FP64"].includes(datatype);
export const isKnown = (datatype) =>
  datatype in PLAIN || ["FP16", "BF16", "BYTES"].includes(datatype);

/** Return numbers, booleans or texts as bytes. Throws an Error that names the value. */
export function encode(datatype, values) {
  if (datatype === "BYTES") return encodeTexts(values);
  if (datatype === "FP16") return new Uint8Array(Uint16Array.from(values, toHalf).buffer);
  if (datatype === "BF16") return new Uint8Array(Uint16Array.from(values, toBrain).buffer);
  const kind = PLAIN[datatype];
  if (!kind) throw new Error(`this page cannot write ${datatype}`);
  if (kind === values.constructor) return new Uint8Array(values.buffer);
  const convert = isFloat(datatype) ? Number : (value) => whole(datatype, value);
  return new Uint8Array(kind.from(values, convert).buffer);
}

function whole(datatype, value) {
  const isBig = datatype.endsWith("64");
  const number = typeof value === "boolean" ? Number(value) : value;
  const least = LEAST[datatype] ?? 0;
  if (typeof number !== "bigint" && !Number.isInteger(number)) {
    throw new Error(`expected whole numbers for ${datatype}, got ${value}`);
  }
  if (number < least || number > MOST[datatype]) {
    throw new Error(`${datatype} is from ${least} to ${MOST[datatype]}, got ${value}`);
  }
  return isBig ? BigInt(number) : Number(number);
}

function encodeTexts(values) {
  const texts = Array.from(values, (value) => new TextEncoder().encode(String(value)));
  const bytes = new Uint8Array(texts.reduce((sum, text) => sum + 4 + text.length, 0));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const text of texts) {
    view.setUint32(at, text.length, true);
    bytes.set(text, at + 4);
    at += 4 + text.length;
  }
  return bytes;
}

/** Return an array of numbers, BigInts, booleans or texts. bytes: a Uint8Array. */
export function decode(datatype, bytes) {
  if (datatype === "BYTES") return decodeTexts(bytes);
  const own = bytes.slice().buffer; // aligned
  if (datatype === "FP16") return Float32Array.from(new Uint16Array(own), fromHalf);
  if (datatype === "BF16") return Float32Array.from(new Uint16Array(own), fromBrain);
  if (datatype === "BOOL") return Array.from(new Uint8Array(own), Boolean);
  const kind = PLAIN[datatype];
  return kind ? new kind(own) : new Uint8Array(own);
}

function decodeTexts(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const texts = [];
  for (let at = 0; at < bytes.length; ) {
    const length = view.getUint32(at, true);
    texts.push(new TextDecoder().decode(bytes.subarray(at + 4, at + 4 + length)));
    at += 4 + length;
  }
  return texts;
}

const word = new DataView(new ArrayBuffer(4));

function toBrain(value) {
  word.setFloat32(0, value);
  const bits = word.getUint32(0);
  if (Number.isNaN(Number(value))) return 0x7fc0;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff; // to the nearest, ties to even
}

function fromBrain(bits) {
  word.setUint32(0, bits << 16);
  return word.getFloat32(0);
}

function toHalf(value) {
  const number = Number(value);
  const sign = number < 0 || Object.is(number, -0) ? 0x8000 : 0;
  const size = Math.abs(number);
  if (Number.isNaN(size)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = size < 2 ** -14 ? -14 : Math.floor(Math.log2(size));
  const steps = toEven(size * 2 ** (10 - exponent)); // 1024 to 2048; less below 2 ** -14
  // A carry into the next power of two comes out right, as bits go on counting.
  return sign | (steps < 1024 ? steps : ((exponent + 14) << 10) + steps);
}

function toEven(value) {
  const below = Math.floor(value);
  const rest = value - below;
  return below + (rest > 0.5 || (rest === 0.5 && below % 2) ? 1 : 0);
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const part = bits & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + part / 1024) : sign * 2 ** -24 * part;
}
