// The page: files and an image come in, predictions and times go out. Everything that computes lies in lib/.

import { readLabels, softmax, top } from "./lib/classes.js";
import { Classifier, medianTimes, requirePair } from "./lib/classifier.js";
import { decode, drawInto } from "./lib/pictures.js";
import { prepare } from "./lib/preprocessing.js";
import { SAMPLES, sampleImage } from "./lib/samples.js";

const ENGINE = "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";
const SHOWN = 5; // classes of each file
const FIRST_SAMPLE = SAMPLES[3];
const SIDES = { float: "float.onnx", integer: "model.onnx" };
const find = id => document.getElementById(id);

const models = {}; // side -> Classifier
let ort, labels = [], image = sampleImage(FIRST_SAMPLE);

// One task at a time: a session runs one image at once. A newer task ends the timing of an older one.
let newest = 0, queue = Promise.resolve();

function enqueue(task) {
  const turn = ++newest;
  document.body.dataset.state = "busy";
  queue = queue.then(() => task(() => turn !== newest)).then(() => settle(turn, "done"), error => fail(turn, error));
  return queue;
}

function settle(turn, state) {
  if (turn === newest) document.body.dataset.state = state;
}

function fail(turn, error) {
  say(error.message, "failed");
  settle(turn, "failed");
}

function say(text, kind = "") {
  find("verdict").textContent = text;
  find("verdict").className = `verdict ${kind}`;
}

// Files

async function startEngine() {
  say("Loading onnxruntime-web …");
  ort = await import(ENGINE).catch(() => {
    throw new Error("onnxruntime-web is not in node_modules; run: npm ci");
  });
  const threads = Number(new URLSearchParams(location.search).get("threads"));
  if (Number.isInteger(threads) && threads > 0) ort.env.wasm.numThreads = threads;
}

async function fetched(path) {
  const response = await fetch(path, { cache: "no-cache" });
  return response.ok ? new Uint8Array(await response.arrayBuffer()) : null;
}

async function loadFolder() {
  const names = await fetched("./model/labels.txt");
  if (names) useLabels(names, "model/labels.txt");
  for (const [side, name] of Object.entries(SIDES)) {
    say(`Loading ${name} …`);
    const bytes = await fetched(`./model/${name}`);
    if (bytes) await useModel(side, bytes, `model/${name}`);
  }
}

async function useModel(side, bytes, name) {
  const loaded = await Classifier.load(ort, bytes).catch(error => {
    throw new Error(`${name}: ${error.message}`);
  });
  await models[side]?.release();
  models[side] = loaded;
  find(`${side}-name`).textContent = name;
}

function useLabels(bytes, name) {
  labels = readLabels(new TextDecoder().decode(bytes));
  find("labels-name").textContent = `${name}, ${labels.length} names`;
}

/** Take files as they come: an image, labels, or models, of which a name with "float" in it is the float one. */
async function take(file, side = file.name.includes("float") ? "float" : "integer") {
  if (file.name.endsWith(".onnx")) await useModel(side, new Uint8Array(await file.arrayBuffer()), file.name);
  else if (file.name.endsWith(".txt")) useLabels(new Uint8Array(await file.arrayBuffer()), file.name);
  else useImage(await decode(file));
}

function useImage(next, sample) {
  image = next;
  for (const button of find("samples").children)
    button.setAttribute("aria-pressed", String(Number(button.dataset.label) === sample?.label));
}

// Predictions

async function classify(outdated) {
  const sides = Object.keys(SIDES).filter(side => models[side]);
  if (!sides.length) {
    say("No model yet. Run ptq4vit-onnx export --output docs/demo/model and reload, or choose the files below.");
    return;
  }
  if (sides.length === 2) requirePair(models.float, models.integer);
  const prepared = prepare(image, models[sides[0]].rule), logits = {};
  for (const side of sides) logits[side] = await models[side].logits(prepared);
  if (outdated()) return;
  showImage(prepared);
  showFacts(models[sides[0]]);
  for (const side of Object.keys(SIDES)) showClasses(side, logits[side]);
  showVerdict(logits);
  document.body.dataset.state = "timing"; // predictions are there, times follow
  await showTimes(sides, prepared, outdated);
}

function showImage(prepared) {
  drawInto(find("original"), image);
  drawInto(find("seen"), prepared);
  find("original-words").textContent = `as given, ${measures(image)}`;
  find("seen-words").textContent = `as the model sees it, ${measures(prepared)}`;
}

const nameOf = index => labels[index] || String(index);

function showClasses(side, logits) {
  find(`${side}-panel`).hidden = !logits;
  if (!logits) return;
  find(`${side}-panel`).querySelector("ol").replaceChildren(...top(logits, SHOWN).map(([index, probability]) => {
    const row = made("li", "", made("div", "words", made("span", "", nameOf(index)), made("span", "", percent(probability))),
      made("div", "track", made("div", "bar")));
    row.querySelector(".bar").style.width = `${100 * probability}%`;
    Object.assign(row.dataset, { index, probability });
    return row;
  }));
}

function showVerdict({ float, integer }) {
  if (!float || !integer) {
    const only = float ?? integer;
    say(`${float ? "The float file" : "The integer file"} predicts ${nameOf(top(only, 1)[0][0])}.`);
    find("kl").textContent = "–";
    return;
  }
  const [first, second] = [float, integer].map(logits => nameOf(top(logits, 1)[0][0]));
  const same = top(float, 1)[0][0] === top(integer, 1)[0][0];
  if (same) say(`Both predict ${first}.`, "passed");
  else say(`They predict different classes: float ${first}, integer ${second}.`, "failed");
  const [p, q] = [float, integer].map(softmax);
  const kl = p.reduce((sum, value, n) => sum + (value > 0 ? value * Math.log(value / q[n]) : 0), 0);
  find("kl").textContent = small(kl);
}

async function showTimes(sides, prepared, outdated) {
  find("tiles").hidden = false;
  for (const side of Object.keys(SIDES)) {
    find(`${side}-time`).textContent = models[side] ? "…" : "–";
    find(`${side}-size`).textContent = models[side] ? `${megabytes(models[side].size)} on disk` : "no file";
  }
  find("ratio").textContent = sides.length === 2 ? "…" : "–";
  const runs = sides.map(side => {
    const feed = models[side].feed([prepared]);
    return () => models[side].run(feed);
  });
  const { medians, rounds } = await medianTimes(runs, { pause: repaint, stop: outdated });
  if (outdated()) return;
  sides.forEach((side, n) => find(`${side}-time`).textContent = milliseconds(medians[n]));
  if (sides.length === 2) find("ratio").textContent = `${(medians[0] / medians[1]).toFixed(2)}×`;
  const threads = ort.env.wasm.numThreads;
  find("runs").textContent = `medians of ${rounds} runs, ${threads} ${threads === 1 ? "thread" : "threads"}`;
}

function showFacts({ metadata, rule, input }) {
  const [channels, height, width] = rule.size, { integer } = models;
  const rows = {
    model: metadata["ptq4vit_onnx.model"],
    weights: metadata["ptq4vit_onnx.weights"],
    images: `${measures({ width, height })}, ${channels === 1 ? "grey" : "RGB"}, ${rule.interpolation}, ${rule.crop_mode}, crop ${rule.crop_pct}`,
    input: `${(integer?.input ?? input).type} [${(integer?.input ?? input).shape.join(", ")}]`,
    engine: `onnxruntime-web ${ort.env.versions.web}, wasm${crossOriginIsolated ? "" : "; one thread, as the page is not cross-origin isolated"}`,
  };
  find("facts").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [made("dt", "", name), made("dd", "", value)]));
}

// Words and elements

const small = value => Math.abs(value) < 1e-3 ? value.toExponential(1) : value.toPrecision(2);
const measures = ({ width, height }) => `${width} × ${height}`.replaceAll(" ", "\u00a0");
const percent = share => `${(100 * share).toFixed(1)} %`.replace(" ", "\u00a0");
const megabytes = bytes => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 1)} MB`;
const milliseconds = time => `${time < 10 ? time.toFixed(2) : time.toFixed(time < 100 ? 1 : 0)} ms`;
const repaint = () => new Promise(resolve => setTimeout(resolve));

function made(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function addSample(sample) {
  const picture = made("canvas", ""), button = made("button", "", picture);
  Object.assign(button, { type: "button", title: `a handwritten ${sample.label}` });
  button.dataset.label = sample.label;
  drawInto(picture, sampleImage(sample));
  button.addEventListener("click", () => enqueue(outdated => {
    useImage(sampleImage(sample), sample);
    return classify(outdated);
  }));
  find("samples").append(button);
}

function listen() {
  for (const [id, side] of [["image-file"], ["labels-file"], ["float-file", "float"], ["integer-file", "integer"]])
    find(id).addEventListener("change", event => receive([...event.target.files], side));
  addEventListener("dragover", event => { event.preventDefault(); document.body.classList.add("dropping"); });
  addEventListener("dragleave", event => event.relatedTarget || document.body.classList.remove("dropping"));
  addEventListener("drop", event => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    receive([...event.dataTransfer.files]);
  });
}

function receive(files, side) {
  if (!files.length) return;
  enqueue(async outdated => {
    say("Reading …");
    for (const file of files) await take(file, side);
    await classify(outdated);
  });
}

SAMPLES.forEach(addSample);
listen();
useImage(image, FIRST_SAMPLE);
enqueue(async outdated => {
  await startEngine();
  await loadFolder();
  await classify(outdated);
});
