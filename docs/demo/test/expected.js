// What the tests of real models compare with: a folder that tests/demo/test_demo.py fills.
//   images.json    {width, height, channels, images: [base64]}
//   NAME/float.onnx, NAME/model.onnx   and   NAME/logits.json   {"float.onnx": [[...]], "model.onnx": [[...]]}

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

const FOLDER = process.env.PTQ4VIT_DEMO_EXPORTS;

export const NAMES = ["floats", "bytes"];

/** Why tests of real models cannot run; false where they can. */
export const missing = !FOLDER
  ? "PTQ4VIT_DEMO_EXPORTS names no folder of exports; tests/demo/test_demo.py makes one"
  : !existsSync(join(FOLDER, "images.json")) && `${FOLDER} has no images.json`;

export const path = (...parts) => join(FOLDER, ...parts);

const json = (...parts) => JSON.parse(readFileSync(path(...parts)));

/** Images {width, height, channels, data}. */
export function images() {
  const { images: encoded, ...shape } = json("images.json");
  return encoded.map(text => ({ ...shape, data: new Uint8Array(Buffer.from(text, "base64")) }));
}

/** Python's logits of these images, for each file. */
export const logitsOf = name => json(name, "logits.json");

export const argmax = row => row.indexOf(row.reduce((a, b) => Math.max(a, b)));
