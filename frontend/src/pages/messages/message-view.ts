import type { MessageView } from "@/api/queries";
import { type Decoded, type Decoder, decode } from "@/lib/decode";
import { NONE } from "@/lib/format";

const encoder = new TextEncoder();

function fromHex(text: string): Uint8Array {
  const out = new Uint8Array(text.length >> 1);
  for (let at = 0; at < out.length; at += 1)
    out[at] = Number.parseInt(text.slice(2 * at, 2 * at + 2), 16);
  return out;
}

/** The bytes of a payload as far as the service sent them; null when they are withheld. */
function bytesOf(payload: MessageView["payload"]): Uint8Array | null {
  if (payload.encoding === "withheld") return null;
  if (payload.encoding === "hex" || payload.encoding === "msgpack")
    return fromHex(payload.text ?? "");
  if (payload.text != null) return encoder.encode(payload.text);
  return encoder.encode(JSON.stringify(payload.value ?? null));
}

/** What the service decoded is believed; another decoder reads the bytes here. */
export function shownPayload(
  payload: MessageView["payload"],
  wanted: Decoder | "auto",
): Decoded | null {
  const bytes = bytesOf(payload);
  if (bytes === null) return null;
  const size = payload.truncated ? payload.size : bytes.length;
  const decoded = decode(bytes, wanted, size);
  return { ...decoded, size: payload.size };
}

/** One message among others. */
export const keyOfMessage = (one: MessageView): string =>
  `${one.node}/${one.session}/${one.queue ?? ""}/${one.token ?? one.position ?? ""}/${one.at_ns ?? ""}`;

export const placeOf = (one: MessageView): string =>
  one.token != null ? `${one.queue ?? 0}:${one.token}` : (one.position ?? NONE);
