// Messages of the fixture platform.
import { iso, noise } from "./fixtures";

const hex = (text: string) =>
  Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, "0")).join("");

export function message(of: string, at: number, nowMs: number) {
  const value = {
    id: 90_000 + at,
    side: at % 2 ? "buy" : "sell",
    symbol: ["VOW3.DE", "AIR.PA", "ASML.AS"][at % 3],
    px: Number((100 + 9 * noise(at)).toFixed(2)),
    qty: 10 * (1 + (at % 9)),
  };
  const kind = at % 7;
  const payload =
    kind === 5
      ? {
          size: 23,
          encoding: "hex",
          text: `${hex("frame")}00ff10a0b1c2d3e4f5060708090a0b0c0d0e`,
          truncated: false,
          decoders: { text: "not UTF-8", json: "not UTF-8" },
        }
      : kind === 6
        ? {
            size: 31,
            encoding: "text",
            text: `heartbeat ${at} from gateway-2`,
            truncated: false,
            decoders: { json: "no document" },
          }
        : {
            size: JSON.stringify(value).length,
            encoding: "json",
            text: JSON.stringify(value),
            value,
            truncated: false,
            decoders: {},
          };
  return {
    topic: of,
    node: "alpha",
    session: "71200000",
    queue: at % 8,
    token: String(9_007_199_254_740_000 + at),
    position: String(812_000_000 + at),
    at: iso(nowMs),
    at_ns: `${BigInt(nowMs) * 1_000_000n}`,
    key: `cust-${at % 40}`,
    headers: { source: "gateway-2", trace: `4bf92f${at.toString(16)}` },
    payload,
  };
}
