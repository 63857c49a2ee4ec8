// JSON as text: indented and never read into numbers, which would round those of 64 bits.

const STRING = /"(?:[^"\\]|\\.)*"/y;
const SCALAR = /[^\s,:[\]{}"]+/y;

/** A JSON document with two spaces a level; each string and number as it was written. */
export function indentJson(text: string): string {
  JSON.parse(text); // it is a document, or this throws where it ends to be
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const take = (pattern: RegExp, at: number): string => {
    pattern.lastIndex = at;
    return pattern.exec(text)?.[0] ?? text.charAt(at);
  };
  for (let at = 0; at < text.length; ) {
    const char = text.charAt(at);
    let token = char;
    if (char === '"') {
      token = take(STRING, at);
      out += token;
    } else if (char === "{" || char === "[") {
      const rest = /^\s*[}\]]/.exec(text.slice(at + 1, at + 200));
      if (rest) {
        token = char + rest[0];
        out += char + rest[0].trim();
      } else {
        depth += 1;
        out += char + line();
      }
    } else if (char === "}" || char === "]") {
      depth -= 1;
      out += line() + char;
    } else if (char === ",") out += char + line();
    else if (char === ":") out += ": ";
    else if (char > " ") {
      token = take(SCALAR, at);
      out += token;
    }
    at += token.length;
  }
  return out;
}
