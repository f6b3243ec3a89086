import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Classifier } from "../lib/classifier.js";
import { prepare } from "../lib/preprocessing.js";
import { NAMES, argmax, images, logitsOf, missing, path } from "./expected.js";

const LEAST_EQUAL = 0.98; // rounding is a cliff: two versions of ONNX Runtime agree on 98.8 to 99.2 %

for (const name of missing ? [] : NAMES)
  for (const file of ["float.onnx", "model.onnx"])
    test(`${name}/${file} in wasm predicts what Python's ONNX Runtime predicts`, async context => {
      const ort = await import("onnxruntime-web");
      const classifier = await Classifier.load(ort, new Uint8Array(readFileSync(path(name, file))));
      const prepared = images().map(image => prepare(image, classifier.rule));
      const { data, classes } = await classifier.run(classifier.feed(prepared));
      const expected = logitsOf(name)[file], rows = expected.map((_, n) => data.slice(n * classes, (n + 1) * classes));
      assert.equal(data.length, expected.length * classes);
      const equal = rows.filter((row, n) => argmax(row) === argmax(expected[n])).length;
      const identical = rows.filter((row, n) => row.every((value, c) => Object.is(value, expected[n][c]))).length;
      context.diagnostic(`${name}/${file}: ${equal} of ${rows.length} predictions equal, logits bit-equal on ${identical}`);
      assert.ok(equal >= LEAST_EQUAL * rows.length, `${equal} of ${rows.length} predictions are equal`);
      assert.equal(classifier.input.type, name === "bytes" && file === "model.onnx" ? "uint8" : "float32");
      await classifier.release();
    });

test("real models run in wasm", { skip: missing }, () => {});
