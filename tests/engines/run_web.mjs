// Run a model in onnxruntime-web (WebAssembly, one thread), in Node.
//
//     node run_web.mjs PACKAGES model.onnx images.npy FOLDER
//
// PACKAGES is a folder whose node_modules hold onnxruntime-web. Writes FOLDER/outputs.npy, the first output for every
// image, and FOLDER/about.json; prints the profile, which names the kernels. Arrays are read and written as numpy does: float32 or uint8, little-endian, in C order.

import { closeSync, openSync, readFileSync, readSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const BATCH = 8;
const KINDS = { "<f4": [Float32Array, "float32"], "|u1": [Uint8Array, "uint8"] };

// The header of a .npy file: type, shape, and where the values begin.
function readHeader(file) {
  const start = Buffer.alloc(12);
  readSync(file, start, 0, 12, 0);
  const [from, length] = start[6] === 1 ? [10, start.readUInt16LE(8)] : [12, start.readUInt32LE(8)];
  const header = Buffer.alloc(length);
  readSync(file, header, 0, length, from);
  const said = header.toString("latin1");
  const kind = said.match(/'descr': '([^']+)'/)[1];
  if (!(kind in KINDS) || said.includes("'fortran_order': True")) throw new Error(`cannot read an array of ${said}`);
  const shape = said.match(/'shape': \(([^)]*)\)/)[1].split(",").filter((axis) => axis.trim()).map(Number);
  return { kind, shape, offset: from + length };
}

// The images one batch after the other, each as a tensor; a file may be larger than one buffer.
function* batches(path, ort) {
  const file = openSync(path, "r");
  const { kind, shape, offset } = readHeader(file);
  const [Values, name] = KINDS[kind];
  const size = shape.slice(1).reduce((product, axis) => product * axis, 1);
  for (let start = 0; start < shape[0]; start += BATCH) {
    const count = Math.min(BATCH, shape[0] - start);
    const values = new Values(count * size);
    readSync(file, new Uint8Array(values.buffer), 0, values.byteLength, offset + start * size * Values.BYTES_PER_ELEMENT);
    yield new ort.Tensor(name, values, [count, ...shape.slice(1)]);
  }
  closeSync(file);
}

function writeFloats(path, parts, width) {
  const rows = parts.reduce((sum, part) => sum + part.length, 0) / width;
  const text = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${width}), }`;
  const padded = text + " ".repeat(63 - ((10 + text.length) % 64)) + "\n";
  const head = Buffer.from([0x93, ...Buffer.from("NUMPY"), 1, 0, padded.length & 255, padded.length >> 8]);
  const values = parts.map((part) => Buffer.from(part.buffer, part.byteOffset, part.byteLength));
  writeFileSync(path, Buffer.concat([head, Buffer.from(padded, "latin1"), ...values]));
}

const [packages, model, images, folder] = process.argv.slice(2);
const ort = createRequire(join(resolve(packages), "package.json"))("onnxruntime-web");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const options = { executionProviders: ["wasm"], enableProfiling: true };
const session = await ort.InferenceSession.create(readFileSync(model), options);
const parts = [];
let width = 0;
for (const batch of batches(images, ort)) {
  const output = (await session.run({ [session.inputNames[0]]: batch }))[session.outputNames[0]];
  width = output.data.length / output.dims[0];
  parts.push(Float32Array.from(output.data));
}
writeFloats(join(folder, "outputs.npy"), parts, width);
writeFileSync(join(folder, "about.json"), JSON.stringify({ version: ort.env.versions.web }));
session.endProfiling(); // in WebAssembly, ONNX Runtime then prints the profile to standard output
