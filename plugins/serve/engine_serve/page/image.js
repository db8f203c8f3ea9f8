// Pictures as tensors: decoded and resized on a canvas, then scaled and put in order.

const CHANNELS = [1, 3, 4];

/** Return the layouts, as "NCHW", in which a shape may be a picture's; the likeliest first. */
export function layoutsOf(shape) {
  const all = { 4: ["NCHW", "NHWC"], 3: ["CHW", "HWC", "NHW"] }[shape.length] ?? [];
  const fits = (layout) =>
    (shape[layout.indexOf("N")] ?? 1) <= 1 && CHANNELS.includes(channelsOf(layout, shape)) &&
    ["H", "W"].every((axis) => shape[layout.indexOf(axis)] < 0 || shape[layout.indexOf(axis)] > 4);
  const isFixed = (layout) => layout.includes("C") && shape[layout.indexOf("C")] > 0;
  return all.filter(fits).sort((a, b) => isFixed(b) - isFixed(a));
}

/** Return how many channels a picture has; 3 where that is open. */
export function channelsOf(layout, shape) {
  if (!layout.includes("C")) return 1;
  const channels = shape[layout.indexOf("C")];
  return channels < 0 ? 3 : channels;
}

/** Return a decoded picture. Throws an Error for another kind of file. */
export async function decoded(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`"${file.name}" is not a picture that this browser can read`);
  }
}

/**
 * Draw a picture on a canvas of height x width, on white.
 * fit: "stretch", "crop" (the middle) or "pad" (all of it, with a border).
 */
export function draw(picture, canvas, height, width, fit) {
  canvas.height = height;
  canvas.width = width;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  const ratios = [width / picture.width, height / picture.height];
  const ratio = fit === "crop" ? Math.max(...ratios) : Math.min(...ratios);
  const wide = fit === "stretch" ? width : picture.width * ratio;
  const high = fit === "stretch" ? height : picture.height * ratio;
  context.drawImage(picture, (width - wide) / 2, (height - high) / 2, wide, high);
}

/**
 * Return a drawn picture's values: (pixel / 255 * white - mean) / std.
 * scaling: {white, mean, std, order ("RGB" or "BGR"), isInverted}; mean and std have a number for
 * all channels or one for each. isFloat: else values are rounded.
 */
export function values(canvas, layout, channels, scaling, isFloat) {
  const { height, width } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const found = new Float32Array(height * width * channels);
  const isChannelLast = layout.endsWith("C");
  for (let channel = 0; channel < channels; channel++) {
    const source = scaling.order === "BGR" && channel < 3 ? 2 - channel : channel;
    const mean = scaling.mean[channel % scaling.mean.length];
    const std = scaling.std[channel % scaling.std.length];
    for (let pixel = 0; pixel < height * width; pixel++) {
      const at = 4 * pixel;
      let level = channels === 1
        ? 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2]
        : data[at + source];
      if (scaling.isInverted && source < 3) level = 255 - level;
      const value = ((level / 255) * scaling.white - mean) / std;
      found[isChannelLast ? pixel * channels + channel : channel * height * width + pixel] =
        isFloat ? value : Math.round(value);
    }
  }
  return found;
}

/** Return the numbers of a field as "0.485, 0.456, 0.406". Throws an Error. */
export function readNumbers(text, channels, name) {
  const numbers = text.split(/[\s,]+/).filter(Boolean).map(Number);
  const fits = [1, channels].includes(numbers.length) && numbers.every(Number.isFinite);
  if (!fits) throw new Error(`${name}: expected one number or ${channels}, got "${text}"`);
  return numbers;
}
