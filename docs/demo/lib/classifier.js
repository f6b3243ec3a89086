// An exported model in onnxruntime-web. `ort` is given, since browsers and Node import different files of it.

import { readMetadata } from "./metadata.js";
import { asInput, ruleOf } from "./preprocessing.js";

const KIND = "ptq4vit_onnx.output_kind"; // absent: logits

export class Classifier {
  /** bytes: of the .onnx file, a Uint8Array. */
  static async load(ort, bytes) {
    const metadata = readMetadata(bytes), rule = ruleOf(metadata);
    if (metadata[KIND] && metadata[KIND] !== "logits")
      throw new Error(`the model returns ${metadata[KIND]}, not classes; take the export of a classifier`);
    const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
    return new Classifier(ort, session, metadata, rule, bytes.length);
  }

  constructor(ort, session, metadata, rule, size) {
    Object.assign(this, { ort, session, metadata, rule, size });
    this.input = session.inputMetadata[0];
  }

  /** The session's input for prepared images. A model of a fixed batch size gets the last one repeated. */
  feed(images) {
    const batch = this.input.shape[0];
    const missing = Number.isInteger(batch) ? Math.max(batch - images.length, 0) : 0;
    const { data, dims } = asInput([...images, ...Array(missing).fill(images.at(-1))], this.rule, this.input.type);
    return { [this.input.name]: new this.ort.Tensor(this.input.type, data, dims) };
  }

  async run(feed) {
    const output = (await this.session.run(feed))[this.session.outputNames[0]];
    return { data: output.data, classes: output.dims.at(-1) };
  }

  /** The logits of one prepared image. */
  async logits(image) {
    const { data, classes } = await this.run(this.feed([image]));
    return data.slice(0, classes);
  }

  release() {
    return this.session.release();
  }
}

/** Refuse two files that are not of one export. */
export function requirePair(float, integer) {
  for (const key of ["ptq4vit_onnx.model", "ptq4vit_onnx.weights_sha256"])
    if (float.metadata[key] !== integer.metadata[key])
      throw new Error(`the two files are not of one export: ${key} is ${float.metadata[key]} and ${integer.metadata[key]}`);
}

const ROUNDS = { warmUp: 2, least: 5, most: 50, budget: 1500 };

/** Median times in ms of models that run in turns: `warmUp` rounds that do not count, then until `budget` ms are spent.
 * At least `least` and at most `most` rounds count. `pause` is awaited between rounds, so that a page can repaint, and
 * `stop` is asked before each. */
export async function medianTimes(runs, options = {}) {
  const { warmUp, least, most, budget, pause = async () => {}, stop = () => false } = { ...ROUNDS, ...options };
  const times = runs.map(() => []), start = performance.now();
  const goesOn = round => round < most && (round < least || performance.now() - start < budget) && !stop();
  for (let round = -warmUp; goesOn(round); round++) {
    for (const [n, run] of runs.entries()) {
      const before = performance.now();
      await run();
      if (round >= 0) times[n].push(performance.now() - before);
    }
    await pause();
  }
  return { medians: times.map(median), rounds: times[0]?.length ?? 0 };
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
