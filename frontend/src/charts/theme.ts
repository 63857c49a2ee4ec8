import type uPlot from "uplot";

/** A custom property of the page as it is now: canvases know no CSS variables. */
export function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
}

export const colourOf = (index: number) => token(`--series-${((index - 1) % 6) + 1}`);

/** The same colour, fading to nothing at the bottom of the plot. */
export function fade(colour: string): uPlot.Series.Fill {
  return (plot) => {
    const { top, height } = plot.bbox;
    if (!Number.isFinite(top + height) || height <= 0) return "transparent";
    const gradient = plot.ctx.createLinearGradient(0, top, 0, top + height);
    gradient.addColorStop(0, colour.replace(/\)$/, " / 0.22)"));
    gradient.addColorStop(1, colour.replace(/\)$/, " / 0)"));
    return gradient;
  };
}

export function axes(
  format: (value: number) => string,
  time: (seconds: number) => string,
): uPlot.Axis[] {
  const shared = {
    stroke: token("--faint"),
    font: "11px Inter Variable, system-ui",
    ticks: { show: false },
  };
  return [
    {
      ...shared,
      grid: { show: false },
      size: 22,
      gap: 4,
      space: 90,
      values: (_, splits) => splits.map(time),
    },
    {
      ...shared,
      grid: { stroke: token("--grid"), width: 1 },
      size: 56,
      gap: 4,
      space: 34,
      values: (_, splits) => splits.map((split) => format(split).replace(/\.0+(?!\d)/, "")),
    },
  ];
}
