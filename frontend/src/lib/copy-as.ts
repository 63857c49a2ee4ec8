// The same action for a shell, the command line and Python: what a page does, a script can do.

export interface Action {
  method: "GET" | "PUT" | "PATCH" | "POST" | "DELETE";
  /** Under the service's address, query included. */
  path: string;
  body?: unknown;
  /** A body that is not JSON, and its media type. */
  text?: string;
  type?: string;
  /** A command of its own, where one does the same; any other request goes by `tidecast api`. */
  cli?: string | undefined;
}

const quoted = (text: string) =>
  /^[\w./:@=,+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;

/** A command line of these words: patterns such as `orders.*` would be read by the shell. */
export const commandOf = (...words: (string | number)[]) =>
  words.map((word) => quoted(String(word))).join(" ");

export function asCurl(action: Action, origin: string): string {
  const method = action.method === "GET" ? "" : `-X ${action.method} `;
  const lines = [`curl -sS --fail-with-body ${method}${quoted(origin + action.path)}`];
  lines.push(`-H "Authorization: Bearer $TIDECAST_KEY"`);
  if (action.body !== undefined) {
    lines.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(action.body))}`);
  } else if (action.text !== undefined) {
    lines.push(`-H 'Content-Type: ${action.type}'`, `--data-binary ${quoted(action.text)}`);
  }
  return lines.join(" \\\n  ");
}

export function asCommand(action: Action, origin: string): string {
  if (action.cli) return action.cli;
  const path = action.path.replace(/^\/api\/v1/, "");
  const words = ["tidecast", "api", "--control", origin, action.method, path];
  if (action.body !== undefined) words.push("--data", JSON.stringify(action.body));
  else if (action.text !== undefined) {
    words.push("--type", action.type ?? "text/plain", "--data", action.text);
  }
  return commandOf(...words);
}

/** JSON as Python writes it. */
function pythonLiteral(value: unknown, indent = ""): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return JSON.stringify(value);
  const inner = `${indent}    `;
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]";
    return `[${value.map((one) => pythonLiteral(one, inner)).join(", ")}]`;
  }
  const entries = Object.entries(value);
  if (entries.length === 0) return "{}";
  const rows = entries.map(
    ([key, one]) => `${inner}${JSON.stringify(key)}: ${pythonLiteral(one, inner)},`,
  );
  return `{\n${rows.join("\n")}\n${indent}}`;
}

export function asPython(action: Action, origin: string): string {
  const lines = ["import json, os, urllib.request", ""];
  const args = [
    `    ${JSON.stringify(origin + action.path)},`,
    `    method=${JSON.stringify(action.method)},`,
  ];
  const headers = ['"Authorization": f"Bearer {os.environ[\'TIDECAST_KEY\']}"'];
  if (action.body !== undefined) {
    lines.push(`body = ${pythonLiteral(action.body)}`);
    args.push("    data=json.dumps(body).encode(),");
    headers.push('"Content-Type": "application/json"');
  } else if (action.text !== undefined) {
    lines.push(`text = ${JSON.stringify(action.text)}`);
    args.push("    data=text.encode(),");
    headers.push(`"Content-Type": ${JSON.stringify(action.type)}`);
  }
  args.push(`    headers={${headers.join(", ")}},`);
  lines.push("request = urllib.request.Request(", ...args, ")");
  lines.push("print(urllib.request.urlopen(request).read().decode())");
  return lines.join("\n");
}
