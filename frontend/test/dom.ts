import { cleanup } from "@testing-library/react";
import { afterEach, beforeEach, expect, vi } from "vitest";

// React reports its own findings on the console: keys that stand twice, updates outside of `act`.
const faults: string[] = [];
beforeEach(() => {
  faults.length = 0;
  for (const level of ["error", "warn"] as const)
    vi.spyOn(console, level).mockImplementation((...words) => {
      faults.push(words.map(String).join(" "));
    });
});
afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
  expect(faults, "the console shows errors or warnings").toEqual([]);
});

// jsdom draws nothing and lays nothing out: what pages ask of it is answered with nothing.
class Observer {
  observe() {}
  unobserve() {}
  disconnect() {}
}
globalThis.ResizeObserver ??= Observer as unknown as typeof ResizeObserver;
globalThis.matchMedia ??= ((query: string) => ({
  matches: false,
  media: query,
  addEventListener() {},
  removeEventListener() {},
})) as unknown as typeof matchMedia;
HTMLCanvasElement.prototype.getContext = (() => null) as never;
Element.prototype.scrollTo = () => {};
globalThis.scrollTo = () => {};
Element.prototype.scrollIntoView = () => {};
Element.prototype.hasPointerCapture = () => false;
