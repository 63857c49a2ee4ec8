// MessagePack -> plain values, for showing. Every length is checked against what is there, and depth
// and element counts are bounded: the bytes come from strangers.

const DEPTH_MAX = 64;
const ITEMS_MAX = 100_000;

class MessagePackError extends Error {}

class Reader {
  private at = 0;
  private items = 0;
  private readonly data: DataView;

  constructor(private readonly source: Uint8Array) {
    this.data = new DataView(source.buffer, source.byteOffset, source.byteLength);
  }

  get rest(): number {
    return this.source.byteLength - this.at;
  }

  private take(size: number): number {
    if (size > this.rest) {
      throw new MessagePackError(`needs ${size} bytes at ${this.at}, ${this.rest} are left`);
    }
    const start = this.at;
    this.at += size;
    return start;
  }

  private uint(size: 1 | 2 | 4): number {
    const at = this.take(size);
    if (size === 1) return this.data.getUint8(at);
    return size === 2 ? this.data.getUint16(at) : this.data.getUint32(at);
  }

  private text(length: number): string {
    const at = this.take(length);
    return new TextDecoder("utf-8", { fatal: true }).decode(this.source.subarray(at, at + length));
  }

  private binary(length: number): unknown {
    const at = this.take(length);
    return `0x${hexOf(this.source.subarray(at, at + length))}`;
  }

  private extension(length: number): unknown {
    const type = this.data.getInt8(this.take(1));
    if (type === -1 && length === 4) return new Date(this.uint(4) * 1000).toISOString();
    return { extension: type, data: this.binary(length) };
  }

  private list(length: number, depth: number): unknown[] {
    this.count(length);
    return Array.from({ length }, () => this.value(depth + 1));
  }

  private map(length: number, depth: number): Record<string, unknown> {
    this.count(length);
    const out: Record<string, unknown> = {};
    for (let done = 0; done < length; done += 1) {
      const key = this.value(depth + 1);
      Object.defineProperty(out, typeof key === "string" ? key : JSON.stringify(key), {
        value: this.value(depth + 1),
        enumerable: true,
        configurable: true,
      });
    }
    return out;
  }

  private count(items: number): void {
    this.items += items;
    if (this.items > ITEMS_MAX || items > this.rest) {
      throw new MessagePackError(`claims ${items} elements, ${this.rest} bytes are left`);
    }
  }

  value(depth = 0): unknown {
    if (depth > DEPTH_MAX) throw new MessagePackError(`nested deeper than ${DEPTH_MAX}`);
    const tag = this.uint(1);
    if (tag <= 0x7f) return tag;
    if (tag <= 0x8f) return this.map(tag & 0x0f, depth);
    if (tag <= 0x9f) return this.list(tag & 0x0f, depth);
    if (tag <= 0xbf) return this.text(tag & 0x1f);
    if (tag >= 0xe0) return tag - 0x100;
    return this.tagged(tag, depth);
  }

  private tagged(tag: number, depth: number): unknown {
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
        return this.binary(this.uint(1));
      case 0xc5:
        return this.binary(this.uint(2));
      case 0xc6:
        return this.binary(this.uint(4));
      case 0xc7:
        return this.extension(this.uint(1));
      case 0xc8:
        return this.extension(this.uint(2));
      case 0xc9:
        return this.extension(this.uint(4));
      case 0xca:
        return this.data.getFloat32(this.take(4));
      case 0xcb:
        return this.data.getFloat64(this.take(8));
      case 0xcc:
        return this.uint(1);
      case 0xcd:
        return this.uint(2);
      case 0xce:
        return this.uint(4);
      case 0xcf:
        return small(this.data.getBigUint64(this.take(8)));
      case 0xd0:
        return this.data.getInt8(this.take(1));
      case 0xd1:
        return this.data.getInt16(this.take(2));
      case 0xd2:
        return this.data.getInt32(this.take(4));
      case 0xd3:
        return small(this.data.getBigInt64(this.take(8)));
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return this.extension(1 << (tag - 0xd4));
      case 0xd9:
        return this.text(this.uint(1));
      case 0xda:
        return this.text(this.uint(2));
      case 0xdb:
        return this.text(this.uint(4));
      case 0xdc:
        return this.list(this.uint(2), depth);
      case 0xdd:
        return this.list(this.uint(4), depth);
      case 0xde:
        return this.map(this.uint(2), depth);
      case 0xdf:
        return this.map(this.uint(4), depth);
      default:
        throw new MessagePackError(`0x${tag.toString(16)} starts no value`);
    }
  }
}

/** A 64-bit integer stays exact: as a string when a float cannot hold it. */
const small = (value: bigint) =>
  value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : `${value}`;

function hexOf(source: Uint8Array): string {
  return Array.from(source, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** One value that fills the source to its end. */
export function decodeMessagePack(source: Uint8Array): unknown {
  const reader = new Reader(source);
  const value = reader.value();
  if (reader.rest > 0) throw new MessagePackError(`${reader.rest} bytes follow the value`);
  return value;
}
