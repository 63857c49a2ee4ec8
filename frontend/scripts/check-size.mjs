// The first load, compressed: the page, what it imports at once, its styles and its fonts. Over the limit the
// build fails.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const FIRST_LOAD_KIB_MAX = 300;
const root = new URL("../../backend/tidecast_control/static/", import.meta.url).pathname;
const manifest = JSON.parse(readFileSync(join(root, ".vite/manifest.json"), "utf8"));

const files = new Set(["index.html", "theme.js"]);
const add = (name) => {
  const chunk = manifest[name];
  if (files.has(chunk.file)) return;
  files.add(chunk.file);
  for (const file of [...(chunk.css ?? []), ...(chunk.assets ?? [])]) files.add(file);
  for (const next of chunk.imports ?? []) add(next);
};
add("index.html");
// The page that opens first.
add("src/pages/overview/overview.tsx");

let bytes = 0;
for (const file of files) {
  const source = readFileSync(join(root, file));
  bytes += file.endsWith(".woff2") ? source.length : gzipSync(source).length;
}
const kib = Math.round(bytes / 1024);
const line = `First load: ${kib} KiB compressed in ${files.size} files (at most ${FIRST_LOAD_KIB_MAX})`;
if (kib > FIRST_LOAD_KIB_MAX) {
  process.stderr.write(`${line}\n`);
  process.exit(1);
}
process.stdout.write(`${line}\n`);
