// Pillow's Image.resize for 8-bit images, bit for bit: a canvas resizes differently, and predictions would differ with it.
// An image is {width, height, channels, data}: data is a Uint8Array [height, width, channels].

const PRECISION = 22; // bits behind the point of a weight: Pillow's PRECISION_BITS for 8-bit pixels

const sinc = x => x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);

/** Name -> [support, weight at a distance]: the filters of Pillow's Resample.c. */
const FILTERS = {
  bilinear: [1, x => Math.max(1 - Math.abs(x), 0)],
  bicubic: [2, x => cubic(Math.abs(x), -0.5)],
  lanczos: [3, x => x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0],
};

export const INTERPOLATIONS = ["nearest", ...Object.keys(FILTERS)];

function cubic(x, a) {
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/** An image of another size. Shrinking widens the filter (antialiasing); each direction is rounded to bytes, rows first. */
export function resize(image, width, height, interpolation) {
  if (image.width === width && image.height === height) return image;
  if (interpolation === "nearest") return nearest(image, width, height);
  const filter = FILTERS[interpolation];
  if (!filter) throw new Error(`interpolation ${interpolation} is not one of ${INTERPOLATIONS.join(", ")}`);
  const wide = image.width === width ? image : across(image, width, filter);
  return wide.height === height ? wide : down(wide, height, filter);
}

/** For every output place: the first input place it reads, and the fixed-point weight of that one and those behind it. */
export function weightsOf(from, to, [reach, weight]) {
  const scale = from / to, widened = Math.max(scale, 1), support = reach * widened, step = 1 / widened;
  return Array.from({ length: to }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - support + 0.5), 0);
    const last = Math.min(Math.trunc(centre + support + 0.5), from);
    const values = [];
    for (let x = first; x < last; x++) values.push(weight((x - centre + 0.5) * step));
    const total = values.reduce((sum, value) => sum + value, 0);
    return [first, values.map(value => fixed(total === 0 ? value : value / total))];
  });
}

const fixed = value => Math.trunc(value * 2 ** PRECISION + (value < 0 ? -0.5 : 0.5));

const byte = sum => Math.min(Math.max(Math.floor(sum / 2 ** PRECISION), 0), 255);

function across({ width, height, channels, data }, target, filter) {
  const weights = weightsOf(width, target, filter), result = new Uint8Array(height * target * channels);
  let place = 0;
  for (let y = 0; y < height; y++)
    for (const [first, row] of weights)
      for (let c = 0; c < channels; c++) {
        let sum = 2 ** (PRECISION - 1), at = (y * width + first) * channels + c;
        for (let x = 0; x < row.length; x++, at += channels) sum += data[at] * row[x];
        result[place++] = byte(sum);
      }
  return { width: target, height, channels, data: result };
}

function down({ width, height, channels, data }, target, filter) {
  const line = width * channels, result = new Uint8Array(target * line);
  let place = 0;
  for (const [first, column] of weightsOf(height, target, filter))
    for (let x = 0; x < line; x++) {
      let sum = 2 ** (PRECISION - 1), at = first * line + x;
      for (let y = 0; y < column.length; y++, at += line) sum += data[at] * column[y];
      result[place++] = byte(sum);
    }
  return { width, height: target, channels, data: result };
}

function nearest({ width, height, channels, data }, toWidth, toHeight) {
  const columns = places(width, toWidth), rows = places(height, toHeight);
  const result = new Uint8Array(toWidth * toHeight * channels);
  let place = 0;
  for (const y of rows)
    for (const x of columns)
      for (let c = 0; c < channels; c++) result[place++] = data[(y * width + x) * channels + c];
  return { width: toWidth, height: toHeight, channels, data: result };
}

/** Added up step by step as Pillow does it, so that a place on an edge falls to the same side. */
function places(from, to) {
  const step = from / to;
  let at = step * 0.5;
  return Array.from({ length: to }, () => {
    const place = Math.min(Math.floor(at), from - 1);
    at += step;
    return place;
  });
}
