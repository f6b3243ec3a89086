// Chromium without a window, driven through its DevTools protocol over two pipes (no port, no dependency).

import { spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

const NAMES = ["chromium", "chromium-browser", "google-chrome"];
const OPTIONS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
];

/** The path of an installed Chromium, or undefined. */
export function findChromium() {
  const folders = (process.env.PATH ?? "").split(delimiter);
  return NAMES.flatMap(name => folders.map(folder => join(folder, name))).find(file => {
    try {
      accessSync(file, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

/** One page in one browser. */
export class Page {
  static async open(program) {
    const page = new Page(program);
    const { targetId } = await page.send("Target.createTarget", { url: "about:blank" });
    page.session = (await page.send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    return page;
  }

  constructor(program) {
    this.profile = mkdtempSync(join(tmpdir(), "demo-chromium-"));
    const options = [...OPTIONS, `--user-data-dir=${this.profile}`];
    this.process = spawn(program, options, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.ended = new Promise(resolve => this.process.once("exit", resolve));
    this.waiting = new Map();
    this.sent = 0;
    let text = "";
    this.process.stdio[4].setEncoding("utf8").on("data", part => {
      const messages = (text + part).split("\0");
      text = messages.pop();
      messages.forEach(message => this.receive(JSON.parse(message)));
    });
    this.ended.then(() => this.waiting.forEach(({ reject }) => reject(new Error("Chromium has ended"))));
  }

  send(method, params = {}) {
    const id = ++this.sent;
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId: this.session })}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  receive({ id, result, error }) {
    const { resolve, reject } = this.waiting.get(id) ?? {};
    this.waiting.delete(id);
    if (error) reject?.(new Error(error.message));
    else resolve?.(result);
  }

  /** The value of an expression in the page; promises are awaited. */
  async evaluate(expression) {
    const params = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", params);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Wait until an expression is true. */
  async until(expression, seconds = 30) {
    const end = Date.now() + seconds * 1000;
    while (!(await this.evaluate(expression))) {
      if (Date.now() > end) throw new Error(`not within ${seconds} s: ${expression}`);
      await new Promise(resolve => setTimeout(resolve, 50));
    }
  }

  go(url) {
    return this.send("Page.navigate", { url });
  }

  look({ width, height = 900, scheme = "light" }) {
    return Promise.all([
      this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false }),
      this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] }),
    ]);
  }

  /** The whole page as PNG bytes. */
  async screenshot() {
    const { data } = await this.send("Page.captureScreenshot", { captureBeyondViewport: true });
    return Buffer.from(data, "base64");
  }

  /** Put files into an <input type="file">. */
  async chooseFiles(selector, files) {
    const { root } = await this.send("DOM.getDocument");
    const { nodeId } = await this.send("DOM.querySelector", { nodeId: root.nodeId, selector });
    await this.send("DOM.setFileInputFiles", { nodeId, files });
  }

  async close() {
    this.session = undefined; // the command is the browser's, not the page's
    this.send("Browser.close").catch(() => {});
    await this.ended;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }
}
