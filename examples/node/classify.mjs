// Classify PNG files with an exported model in Node, in WebAssembly:  npm ci && node classify.mjs MODEL.onnx IMAGE.png ...
// The metadata say how images are prepared; the files of docs/demo/lib read them, have no dependency and can be copied.
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";
import { PNG } from "pngjs";
import { top } from "../../docs/demo/lib/classes.js";
import { Classifier } from "../../docs/demo/lib/classifier.js";
import { prepare } from "../../docs/demo/lib/preprocessing.js";

const [model, ...files] = process.argv.slice(2);
if (!files.length) {
  console.error("usage: node classify.mjs MODEL.onnx IMAGE.png [IMAGE.png ...]");
  process.exit(2);
}
const classifier = await Classifier.load(ort, new Uint8Array(readFileSync(model)));
for (const file of files) {
  const { width, height, data } = PNG.sync.read(readFileSync(file)); // RGBA
  const logits = await classifier.logits(prepare({ width, height, channels: 4, data }, classifier.rule));
  console.log(file, ...top(logits, 5).map(([index, probability]) => `${index}:${probability.toFixed(4)}`));
}
