import assert from "node:assert/strict";
import { test } from "node:test";

import { readMetadata } from "../lib/metadata.js";

const utf8 = text => [...new TextEncoder().encode(text)];
const varint = value => value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))];
const message = (field, bytes) => [...varint(field * 8 + 2), ...varint(bytes.length), ...bytes];
const entry = (key, value) => message(14, [...message(1, utf8(key)), ...message(2, utf8(value))]);
const read = (...parts) => readMetadata(Uint8Array.from(parts.flat()));

test("keys and values are read in whatever order the fields come", () => {
  const irVersion = [8, 10], graph = message(7, Array(300).fill(255)), opset = message(8, [16, 20]);
  const file = [entry("a", "1"), irVersion, graph, entry("größe", "{\"π\": 3}"), opset];
  assert.deepEqual(read(...file), { a: "1", größe: "{\"π\": 3}" });
});

test("fields of every wire type are skipped", () => {
  const long = [5 * 8, ...Array(9).fill(255), 1]; // a negative model_version has ten bytes
  const eight = [9 * 8 + 1, ...Array(8).fill(200)], four = [10 * 8 + 5, ...Array(4).fill(200)];
  assert.deepEqual(read(long, eight, four, entry("key", "value")), { key: "value" });
});

test("a value longer than 127 bytes and an empty one are read whole", () => {
  const long = "x".repeat(1000);
  assert.deepEqual(read(entry("long", long), message(14, message(1, utf8("empty")))), { long, empty: "" });
});

test("a file without metadata has none", () => assert.deepEqual(read([8, 10]), {}));

for (const [what, bytes] of Object.entries({
  "a file that is cut off": entry("key", "value").slice(0, -1),
  "a number without an end": Array(20).fill(255),
  "an HTML page": utf8("<!doctype html>"),
  "a file of zeros": Array(16).fill(0),
  "metadata that are a number": [14 * 8, 1],
}))
  test(`${what} is refused`, () => assert.throws(() => read(bytes), /not an ONNX file/));
