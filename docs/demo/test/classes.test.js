import assert from "node:assert/strict";
import { test } from "node:test";

import { readLabels, softmax, top } from "../lib/classes.js";
import { median, medianTimes, requirePair } from "../lib/classifier.js";

test("softmax adds up to one and survives huge logits", () => {
  assert.deepEqual(softmax([0, 0]), [0.5, 0.5]);
  assert.deepEqual(softmax(Float32Array.of(1e4, 1e4, -1e4)), [0.5, 0.5, 0]);
  assert.ok(Math.abs(softmax([0, Math.log(3)])[1] - 0.75) < 1e-15);
});

test("the likeliest classes come first, and of equal ones the first", () => {
  const found = top(Float32Array.of(1, 3, 3, 2), 3);
  assert.deepEqual(found.map(([index]) => index), [1, 2, 3]);
  assert.ok(found[0][1] === found[1][1] && found[1][1] > found[2][1]);
});

test("labels are lines, with either line end", () => assert.deepEqual(readLabels("cat\r\ndog \nfox\n\n"), ["cat", "dog", "fox"]));

test("the median of an even count lies between the middle two", () => {
  assert.equal(median([5, 1, 3]), 3);
  assert.equal(median([4, 1, 3, 2]), 2.5);
});

test("models run in turns, and warm-up rounds do not count", async () => {
  const order = [];
  const runs = ["float", "integer"].map(name => async () => order.push(name));
  const { rounds, medians } = await medianTimes(runs, { warmUp: 1, least: 2, most: 3, budget: 1e6 });
  assert.equal(rounds, 3);
  assert.equal(medians.length, 2);
  assert.deepEqual(order, Array(4).fill(["float", "integer"]).flat());
});

test("timing ends when it is told to, or when its budget is spent", async () => {
  let asked = 0;
  assert.equal((await medianTimes([async () => {}], { warmUp: 0, stop: () => asked++ === 3 })).rounds, 3);
  assert.equal((await medianTimes([async () => {}], { warmUp: 0, least: 4, budget: 0 })).rounds, 4);
});

test("files of two exports are refused as a pair", () => {
  const file = (model, weights) => ({ metadata: { "ptq4vit_onnx.model": model, "ptq4vit_onnx.weights_sha256": weights } });
  requirePair(file("vit_t", "1"), file("vit_t", "1"));
  assert.throws(() => requirePair(file("vit_t", "1"), file("deit_t", "1")), /model is vit_t and deit_t/);
  assert.throws(() => requirePair(file("vit_t", "1"), file("vit_t", "2")), /weights_sha256 is 1 and 2/);
});
