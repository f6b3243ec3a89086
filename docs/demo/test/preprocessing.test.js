import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { asInput, prepare, roundToEven, ruleOf } from "../lib/preprocessing.js";
import { resize, weightsOf } from "../lib/resize.js";

// Written by tests/demo/pillow_cases.py: what Pillow and ptq4vit_onnx.images make of these images.
const CASES = JSON.parse(readFileSync(new URL("pillow.json", import.meta.url)));

/** The same made-up image as in pillow_cases.py: edges, ramps and fine patterns. */
function madeUp({ width, height, channels }) {
  const data = new Uint8Array(width * height * channels);
  let place = 0;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let c = 0; c < channels; c++) data[place++] = (x * 7 + y * 13 + c * 29 + ((x * y) % 31) * 40) % 256;
  return { width, height, channels, data };
}

const sha256 = data => createHash("sha256").update(data).digest("hex");

for (const { name, image, rule, pixels, floats } of CASES) {
  if (pixels)
    test(`${name}: the pixels are Pillow's, every one`, () =>
      assert.deepEqual(prepare(madeUp(image), rule).data, new Uint8Array(Buffer.from(pixels, "base64"))));
  test(`${name}: the normalised floats are numpy's, bit for bit`, () => {
    const { data, dims } = asInput([prepare(madeUp(image), rule)], rule, "float32");
    assert.deepEqual(dims, [1, ...rule.size]);
    assert.equal(sha256(data), floats);
  });
}

test("bytes keep their channels last, and images of a batch lie one behind the other", () => {
  const rule = { size: [3, 1, 2], mean: [0], std: [1] };
  const [one, two] = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]].map(data => ({ data: Uint8Array.from(data) }));
  const { data, dims } = asInput([one, two], rule, "uint8");
  assert.deepEqual([[...data], dims], [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [2, 1, 2, 3]]);
  const floats = asInput([one], rule, "float32").data;
  assert.deepEqual([...floats].map(value => Math.round(value * 255)), [1, 4, 2, 5, 3, 6]);
});

test("a flat image stays flat, however it is resized", () => {
  for (const interpolation of ["nearest", "bilinear", "bicubic", "lanczos"]) {
    const image = { width: 7, height: 5, channels: 1, data: new Uint8Array(35).fill(201) };
    assert.ok(resize(image, 11, 3, interpolation).data.every(value => value === 201), interpolation);
  }
});

test("weights add up to one within their rounding", () => {
  for (const [, weights] of weightsOf(100, 7, [1, x => Math.max(1 - Math.abs(x), 0)]))
    assert.ok(Math.abs(weights.reduce((a, b) => a + b) - 2 ** 22) <= weights.length / 2);
});

test("a half is rounded to the even neighbour, as Python does", () =>
  assert.deepEqual([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, 2.6].map(roundToEven).map(value => value + 0), [0, 2, 2, 0, -2, 2, 3]));

test("a rule that cannot be followed is refused by name", () => {
  const rule = { size: [3, 4, 4], crop_pct: 1, crop_mode: "center", interpolation: "bicubic", mean: [0], std: [1] };
  const of = change => () => ruleOf({ "ptq4vit_onnx.preprocessing": JSON.stringify({ ...rule, ...change }) });
  assert.deepEqual(of({})(), rule);
  assert.throws(() => ruleOf({}), /does not say how its images are prepared/);
  assert.throws(of({ interpolation: "box" }), /interpolation box is not one of/);
  assert.throws(of({ crop_mode: "border" }), /crop mode border is not supported/);
  assert.throws(of({ size: [4, 4, 4] }), /takes 4 channels; expected 1 or 3/);
});
