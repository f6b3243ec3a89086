// A static server for this folder, on 127.0.0.1 alone: `npm start`, or `node server.mjs PORT`.
// Its headers isolate the page from other origins, without which browsers allow no threads in WebAssembly.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".mjs": "text/javascript; charset=utf-8",
  ".onnx": "application/octet-stream",
  ".png": "image/png",
  ".txt": "text/plain; charset=utf-8",
  ".wasm": "application/wasm",
};
const HEADERS = {
  "Cache-Control": "no-cache",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Resource-Policy": "same-origin",
  "X-Content-Type-Options": "nosniff",
};

/** Serve `folder`; port 0 takes any free one. Resolves to the listening http.Server. */
export function serve(folder, port) {
  const server = createServer((request, response) => answer(folder, request, response));
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", () => resolve(server));
  });
}

async function answer(folder, request, response) {
  if (request.method !== "GET" && request.method !== "HEAD") return end(response, 405, "GET and HEAD only");
  const file = fileOf(folder, request.url);
  const found = file && (await stat(file).catch(() => null));
  if (!found?.isFile()) return end(response, 404, `nothing at ${request.url}`);
  const type = TYPES[extname(file)] ?? "application/octet-stream";
  response.writeHead(200, { ...HEADERS, "Content-Type": type, "Content-Length": found.size });
  if (request.method === "HEAD") response.end();
  else createReadStream(file).on("error", () => response.destroy()).pipe(response);
}

/** The file that a URL names, or null where it leads out of the folder or is no URL. */
export function fileOf(folder, url) {
  try {
    const path = decodeURIComponent(url.split(/[?#]/)[0]);
    const file = normalize(join(folder, path.endsWith("/") ? `${path}index.html` : path));
    return path.includes("\0") || !file.startsWith(join(folder, sep)) ? null : file;
  } catch {
    return null; // a percent sign that is no escape
  }
}

function end(response, status, text) {
  response.writeHead(status, { ...HEADERS, "Content-Type": "text/plain; charset=utf-8" });
  response.end(`${text}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const port = Number(process.argv[2] ?? 8000);
  serve(fileURLToPath(new URL(".", import.meta.url)), port).then(
    server => console.log(`http://127.0.0.1:${server.address().port}/  (Ctrl-C ends it)`),
    error => {
      console.error(error.code === "EADDRINUSE" ? `port ${port} is taken; try: npm start -- ${port + 1}` : error.message);
      process.exitCode = 2;
    },
  );
}
