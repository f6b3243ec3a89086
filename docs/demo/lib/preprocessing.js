// How an image becomes a network's input: the rule that stands in the file's metadata, as ptq4vit_onnx/images applies it.

import { INTERPOLATIONS, resize } from "./resize.js";

const RULE = "ptq4vit_onnx.preprocessing";

/** The rule of a file's metadata: {size: [channels, height, width], crop_pct, crop_mode, interpolation, mean, std}. */
export function ruleOf(metadata) {
  if (!(RULE in metadata))
    throw new Error(`the file does not say how its images are prepared (no ${RULE} in its metadata); take one that ptq4vit-onnx export has written`);
  const rule = JSON.parse(metadata[RULE]);
  if (!INTERPOLATIONS.includes(rule.interpolation))
    throw new Error(`interpolation ${rule.interpolation} is not one of ${INTERPOLATIONS.join(", ")}`);
  if (!["center", "squash"].includes(rule.crop_mode))
    throw new Error(`crop mode ${rule.crop_mode} is not supported; expected center or squash`);
  if (![1, 3].includes(rule.size[0])) throw new Error(`the model takes ${rule.size[0]} channels; expected 1 or 3`);
  return rule;
}

/** An image {width, height, channels, data} of 1 (grey), 3 (RGB) or 4 (RGBA) channels, resized and cropped to the rule's. */
export function prepare(image, rule) {
  const [channels, height, width] = rule.size;
  const [toWidth, toHeight] = resizedTo(image, rule);
  return crop(resize(withChannels(image, channels), toWidth, toHeight, rule.interpolation), width, height);
}

/** Prepared images as what a model takes: bytes [n, height, width, channels] or normalised floats [n, channels, height, width]. */
export function asInput(images, rule, type) {
  const [channels, height, width] = rule.size, count = channels * height * width;
  const result = type === "uint8" ? new Uint8Array(images.length * count) : new Float32Array(images.length * count);
  images.forEach(({ data }, n) => result.set(type === "uint8" ? data : normalised(data, rule), n * count));
  const dims = type === "uint8" ? [images.length, height, width, channels] : [images.length, channels, height, width];
  return { data: result, dims };
}

/** [width, height] before the centre is cropped: "squash" ignores the aspect ratio, "center" keeps it.
 * timm rounds down where the model's image is square, and to the nearest where it is not. */
export function resizedTo({ width, height }, { size, crop_pct, crop_mode }) {
  const [tall, wide] = size.slice(1).map(side => Math.floor(side / crop_pct));
  if (crop_mode === "squash") return [wide, tall];
  if (wide !== tall) {
    const ratio = Math.min(width / wide, height / tall);
    return [roundToEven(width / ratio), roundToEven(height / ratio)];
  }
  return width <= height ? [wide, Math.trunc(wide * height / width)] : [Math.trunc(tall * width / height), tall];
}

/** The centre; what lies outside the image is black. */
export function crop(image, width, height) {
  const { channels, data } = image, result = new Uint8Array(width * height * channels);
  const left = roundToEven((image.width - width) / 2), top = roundToEven((image.height - height) / 2);
  const from = Math.max(left, 0), to = Math.min(left + width, image.width);
  for (let y = Math.max(top, 0); y < Math.min(top + height, image.height); y++) {
    const row = data.subarray((y * image.width + from) * channels, (y * image.width + to) * channels);
    result.set(row, ((y - top) * width + from - left) * channels);
  }
  return { width, height, channels, data: result };
}

/** Transparency is dropped; grey from colours has the weights of Pillow's convert("L"). */
function withChannels(image, channels) {
  if (image.channels === channels) return image;
  const { width, height, data } = image, count = width * height, result = new Uint8Array(count * channels);
  for (let n = 0; n < count; n++) {
    const at = n * image.channels;
    const [red, green, blue] = image.channels === 1 ? [data[at], data[at], data[at]] : data.subarray(at, at + 3);
    if (channels === 3) result.set([red, green, blue], n * 3);
    else result[n] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
  }
  return { width, height, channels, data: result };
}

/** Bytes [height, width, channels] as floats [channels, height, width]; every step rounds to 32 bits, as numpy's does. */
function normalised(data, { size: [channels, height, width], mean, std }) {
  const count = height * width, result = new Float32Array(channels * count), f = Math.fround;
  for (let c = 0; c < channels; c++) {
    const centre = f(mean[c % mean.length]), spread = f(std[c % std.length]);
    for (let n = 0; n < count; n++) result[c * count + n] = f(f(f(data[n * channels + c] / 255) - centre) / spread);
  }
  return result;
}

/** Python's round: a half goes to the even neighbour. */
export function roundToEven(value) {
  const below = Math.floor(value), rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 !== 0) ? below + 1 : below;
}
