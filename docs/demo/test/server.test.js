import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { fileOf, serve } from "../server.mjs";

const FOLDER = fileURLToPath(new URL("..", import.meta.url));
let server, address;

before(async () => {
  server = await serve(FOLDER, 0);
  address = `http://127.0.0.1:${server.address().port}`;
});
after(() => server.close());

test("the page is served, isolated from other origins, so that threads are allowed", async () => {
  const response = await fetch(`${address}/`);
  assert.equal(response.status, 200);
  assert.match(response.headers.get("content-type"), /^text\/html/);
  assert.equal(response.headers.get("cross-origin-opener-policy"), "same-origin");
  assert.equal(response.headers.get("cross-origin-embedder-policy"), "require-corp");
  assert.match(await response.text(), /Float against integers/);
});

test("modules have a type that browsers run", async () => {
  for (const file of ["page.js", "server.mjs"])
    assert.match((await fetch(`${address}/${file}`, { method: "HEAD" })).headers.get("content-type"), /^text\/javascript/);
});

test("it listens on this computer alone", () => assert.equal(server.address().address, "127.0.0.1"));

test("what is not there is 404, what is no GET is 405", async () => {
  assert.equal((await fetch(`${address}/model/none.onnx`)).status, 404);
  assert.equal((await fetch(`${address}/lib`)).status, 404);
  assert.equal((await fetch(`${address}/`, { method: "POST" })).status, 405);
});

test("nothing outside the folder is named by any URL", () => {
  for (const url of ["/../x", "/%2e%2e/x", "/..%2fx", "/lib/../../x", "/%00", "/%"]) assert.equal(fileOf("/a/demo", url), null, url);
  assert.equal(fileOf("/a/demo", "/lib/x.js?a=../.."), "/a/demo/lib/x.js");
  assert.equal(fileOf("/a/demo", "/"), "/a/demo/index.html");
});
