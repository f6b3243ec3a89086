import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { SAMPLES } from "../lib/samples.js";
import { serve } from "../server.mjs";
import { Page, findChromium } from "./chromium.js";
import { NAMES, argmax, logitsOf, missing, path } from "./expected.js";

const DEMO = fileURLToPath(new URL("..", import.meta.url));
const CHROMIUM = findChromium();
const skip = missing || (CHROMIUM ? false : "no Chromium on this machine, so the page cannot be looked at");
const SHOTS = process.env.PTQ4VIT_DEMO_SHOTS; // a folder for screenshots
const STATE = "document.body?.dataset.state";
const IDLE = `['done', 'failed'].includes(${STATE})`, PREDICTED = `['timing', 'done', 'failed'].includes(${STATE})`;
const FORGET = "document.body.dataset.state = 'before'"; // so that what the page shows already is not taken for an answer
const SHOWN = `({
  verdict: document.getElementById("verdict").textContent,
  state: document.body.dataset.state,
  classes: Object.fromEntries(["float", "integer"].map(side => [side,
    [...document.querySelectorAll("#" + side + "-panel li")].map(row => [+row.dataset.index, +row.dataset.probability])])),
  times: ["float-time", "integer-time", "ratio"].map(id => document.getElementById(id).textContent),
  sideways: document.documentElement.scrollWidth - innerWidth,
})`;
let page, server, folder;

/** The page's folder with the models of one export in it, opened; resolves to what it shows when it is done. */
async function open(name) {
  rmSync(join(folder, "model"), { recursive: true, force: true });
  if (name) cpSync(path(name), join(folder, "model"), { recursive: true });
  await page.evaluate(FORGET);
  await page.go(`http://127.0.0.1:${server.address().port}/`);
  return shown();
}

async function shown(when = IDLE) {
  await page.until(when);
  return page.evaluate(SHOWN);
}

async function choose(selector, files) {
  await page.evaluate(FORGET);
  await page.chooseFiles(selector, files);
  return shown();
}

before(async () => {
  if (skip) return;
  folder = mkdtempSync(join(tmpdir(), "demo-"));
  for (const part of ["index.html", "page.js", "style.css", "lib"]) cpSync(join(DEMO, part), join(folder, part), { recursive: true });
  symlinkSync(join(DEMO, "node_modules"), join(folder, "node_modules"));
  server = await serve(folder, 0);
  page = await Page.open(CHROMIUM);
});
after(async () => {
  await page?.close();
  server?.close();
  if (folder) rmSync(folder, { recursive: true });
});

for (const name of NAMES)
  test(`${name}: every sample is predicted as Python predicts it, by both files`, { skip }, async () => {
    await open(name);
    const expected = logitsOf(name); // the samples are the first images
    for (const [n, sample] of SAMPLES.entries()) {
      await page.evaluate(`document.querySelector("[data-label='${sample.label}']").click()`);
      const { verdict, state, classes } = await shown(PREDICTED);
      const [float, integer] = ["float.onnx", "model.onnx"].map(file => argmax(expected[file][n]));
      assert.notEqual(state, "failed", verdict);
      assert.deepEqual([classes.float[0][0], classes.integer[0][0]], [float, integer]);
      assert.equal(verdict, float === integer ? `Both predict ${float}.` : `They predict different classes: float ${float}, integer ${integer}.`);
    }
  });

test("times, and probabilities from high to low, are shown, and nothing scrolls sideways", { skip }, async () => {
  await page.look({ width: 1280, scheme: "light" });
  const { classes, times } = await open("floats");
  for (const text of times) assert.match(text, /^[0-9.]+( ms|×)$/);
  for (const rows of Object.values(classes)) {
    assert.equal(rows.length, 5);
    rows.forEach(([, share], n) => assert.ok(share <= (n ? rows[n - 1][1] : 1) && share > 0));
  }
  for (const width of [1280, 420, 360])
    for (const scheme of ["light", "dark"]) {
      await page.look({ width, scheme });
      assert.equal(await page.evaluate(`(${SHOWN}).sideways`), 0, `${width} pixels`);
      const picture = await page.screenshot();
      assert.ok(picture.length > 5000);
      if (SHOTS) writeFileSync(join(SHOTS, `${width}-${scheme}.png`), picture);
    }
});

test("without models the page says how to get them, and takes them from file pickers", { skip }, async () => {
  assert.match((await open(null)).verdict, /^No model yet. Run ptq4vit-onnx export/);
  assert.match((await choose("#integer-file", [path("bytes", "model.onnx")])).verdict, /^The integer file predicts 3\.$/);
  assert.equal((await choose("#float-file", [path("bytes", "float.onnx")])).verdict, "Both predict 3.");
  const labels = join(folder, "names.txt");
  writeFileSync(labels, "zero\none\ntwo\nthree\n");
  assert.equal((await choose("#labels-file", [labels])).verdict, "Both predict three.");
});

test("an image file is decoded and prepared as Python does it", { skip }, async () => {
  await open("floats");
  const { verdict, classes } = await choose("#image-file", [path("digit.png")]);
  const expected = logitsOf("floats")["float.onnx"].at(-1); // the file is the last image
  assert.equal(classes.float[0][0], argmax(expected), verdict);
  const total = expected.reduce((sum, value) => sum + Math.exp(value), 0);
  assert.ok(Math.abs(classes.float[0][1] - Math.exp(Math.max(...expected)) / total) < 1e-5);
});

test("what is neither image nor model is refused in a sentence, and the page goes on", { skip }, async () => {
  await open("floats");
  const text = join(folder, "text.jpg");
  writeFileSync(text, "no image");
  assert.equal((await choose("#image-file", [text])).verdict, "text.jpg is no image that this browser can read");
  const broken = join(folder, "broken.onnx");
  writeFileSync(broken, "<!doctype html>");
  assert.match((await choose("#integer-file", [broken])).verdict, /^broken.onnx: not an ONNX file/);
  await page.evaluate(`document.querySelector("[data-label='3']").click()`);
  assert.equal((await shown()).verdict, "Both predict 3.");
});
