// Samples live outside React, in typed arrays: a chart reads them where they are, and a frame that
// arrives four times a second allocates nothing.

/** The last `capacity` samples of many named series that share one time axis. */
export class SeriesRing {
  readonly capacity: number;
  private readonly times: Float64Array;
  private readonly series = new Map<string, Float32Array>();
  private next = 0;
  private filled = 0;

  constructor(
    capacity: number,
    private readonly seriesMax = 4_000,
  ) {
    if (!Number.isInteger(capacity) || capacity < 2) {
      throw new RangeError(`capacity is ${capacity}; it must be an integer of at least 2`);
    }
    this.capacity = capacity;
    this.times = new Float64Array(capacity);
  }

  get length(): number {
    return this.filled;
  }

  get names(): string[] {
    return [...this.series.keys()];
  }

  /** Adds one moment. Series that it does not name get a hole (NaN). Time only moves forward. */
  push(timeSeconds: number, values: Iterable<readonly [string, number]>): boolean {
    if (this.filled > 0 && timeSeconds <= this.newestTime()) return false;
    const at = this.next;
    this.times[at] = timeSeconds;
    for (const samples of this.series.values()) samples[at] = Number.NaN;
    for (const [name, value] of values) {
      let samples = this.series.get(name);
      if (!samples) {
        if (this.series.size >= this.seriesMax) continue;
        samples = new Float32Array(this.capacity).fill(Number.NaN);
        this.series.set(name, samples);
      }
      samples[at] = value;
    }
    this.next = (at + 1) % this.capacity;
    this.filled = Math.min(this.filled + 1, this.capacity);
    return true;
  }

  newestTime(): number {
    if (this.filled === 0) return Number.NaN;
    return this.times[(this.next - 1 + this.capacity) % this.capacity] ?? Number.NaN;
  }

  oldestTime(): number {
    if (this.filled === 0) return Number.NaN;
    return this.times[(this.next - this.filled + this.capacity) % this.capacity] ?? Number.NaN;
  }

  /** The window to draw: shorter while there is less to show, never under `least` seconds. */
  span(seconds: number, least: number): number {
    const have = this.newestTime() - this.oldestTime();
    return Number.isNaN(have) ? seconds : Math.min(seconds, Math.max(least, have));
  }

  latest(name: string): number {
    const samples = this.series.get(name);
    if (!samples || this.filled === 0) return Number.NaN;
    return samples[(this.next - 1 + this.capacity) % this.capacity] ?? Number.NaN;
  }

  /** Times and the named series of the last `seconds`, oldest first: uPlot's shape. */
  window(names: readonly string[], seconds: number): Float64Array[] {
    const from = this.newestTime() - seconds;
    let count = 0;
    while (count < this.filled && (this.times[this.index(count)] ?? 0) >= from) count += 1;
    return [this.times, ...names.map((name) => this.series.get(name))].map((samples) => {
      const out = new Float64Array(count);
      if (!samples) return out.fill(Number.NaN);
      const start = (this.next - count + this.capacity) % this.capacity;
      const head = Math.min(count, this.capacity - start);
      out.set(samples.subarray(start, start + head));
      out.set(samples.subarray(0, count - head), head);
      return out;
    });
  }

  /** Change a second over the last `seconds`, by least squares; NaN with fewer than three samples. */
  slope(name: string, seconds: number): number {
    const [times, values] = this.window([name], seconds);
    if (!times || !values) return Number.NaN;
    const origin = times[0] ?? 0;
    let count = 0;
    let sumX = 0;
    let sumY = 0;
    let sumXX = 0;
    let sumXY = 0;
    for (let at = 0; at < times.length; at += 1) {
      const x = (times[at] ?? 0) - origin;
      const y = values[at] ?? Number.NaN;
      if (Number.isNaN(y)) continue;
      count += 1;
      sumX += x;
      sumY += y;
      sumXX += x * x;
      sumXY += x * y;
    }
    const spread = count * sumXX - sumX * sumX;
    return count < 3 || spread === 0 ? Number.NaN : (count * sumXY - sumX * sumY) / spread;
  }

  /** Forgets series that nobody has filled in the window: entities come and go. */
  prune(): void {
    for (const [name, samples] of this.series) {
      if (samples.every(Number.isNaN)) this.series.delete(name);
    }
  }

  /** Age counted back from the newest sample. */
  private index(age: number): number {
    return (this.next - 1 - age + 2 * this.capacity) % this.capacity;
  }
}
