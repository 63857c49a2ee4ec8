// Serves the built dashboard on a platform that is not there: `npm run fixtures`, then open the address it says.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { type WebSocket, WebSocketServer } from "ws";
import { answer, message } from "./answers";
import { channelData, makeTopics } from "./fixtures";

const root = "../backend/tidecast_control/static";
const TYPES: Record<string, string> = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".woff2": "font/woff2",
};
const topics = makeTopics(10_000);

const server = createServer(async (request, response) => {
  const url = new URL(request.url ?? "/", "http://fixture");
  if (url.pathname.startsWith("/api/")) {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const text = Buffer.concat(parts).toString();
    const found = answer(
      request.method ?? "GET",
      url,
      text ? JSON.parse(text) : null,
      topics,
      Date.now(),
    );
    response.writeHead(found?.status ?? 404, { "content-type": "application/json" });
    response.end(
      found?.status === 204 ? "" : JSON.stringify(found?.body ?? { detail: "no such path" }),
    );
    return;
  }
  const file = /^\/(assets\/|icon|theme)/.test(url.pathname) ? url.pathname : "/index.html";
  try {
    const body = await readFile(join(root, file));
    response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "text/plain" });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
});

let seq = 0;
function send(socket: WebSocket, kind: string, channel: string, data: object | null) {
  seq += 1;
  socket.send(
    JSON.stringify({ seq: String(seq), at: new Date().toISOString(), kind, channel, data }),
  );
}

new WebSocketServer({ server, path: "/api/v1/live" }).on("connection", (socket) => {
  let watched: string[] = [];
  let count = 0;
  const tick = () => {
    for (const channel of watched) {
      const now = Date.now();
      if (channel.startsWith("messages:")) {
        count += 3;
        const fresh = [0, 1, 2].map((at) =>
          message(channel.slice(9), count + at, now - (2 - at) * 40),
        );
        send(socket, "delta", channel, { messages: fresh, skipped: "41", withheld: false });
      } else {
        const data = channelData(channel, now);
        if (data) send(socket, "snapshot", channel, data);
      }
    }
  };
  const timer = setInterval(tick, 500);
  socket.on("message", (text) => {
    const before = new Set(watched);
    watched = JSON.parse(String(text)).watch;
    for (const channel of watched) {
      if (before.has(channel)) continue;
      // The minutes before, so that charts are not empty.
      const data = channelData(channel, Date.now());
      if (data) send(socket, "snapshot", channel, data);
    }
  });
  socket.on("close", () => clearInterval(timer));
});

server.listen(Number(process.env.PORT ?? 7481), "127.0.0.1", () => {
  const { port } = server.address() as { port: number };
  process.stdout.write(`http://127.0.0.1:${port}\n`);
});
