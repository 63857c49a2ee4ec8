import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { usePrefs } from "@/lib/prefs";
import { clock, dateTime } from "@/lib/time";
import { Legend } from "./legend";
import { axes, colourOf, fade } from "./theme";

interface HistoryLine {
  label: string;
  tint: number;
  values: readonly (number | null)[];
}

interface Props {
  label: string;
  /** Seconds since 1970, evenly apart. */
  atS: readonly number[];
  stepS: number;
  lines: readonly HistoryLine[];
  format: (value: number) => string;
  height?: number;
}

const DAY_S = 86_400;

/** What was measured, over hours or months. Where nothing was measured the line has a hole. */
export function HistoryChart({ label, atS, stepS, lines, format, height = 170 }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const said = useRef<HTMLSpanElement>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const { theme, zone } = usePrefs();

  // biome-ignore lint/correctness/useExhaustiveDependencies: a theme's colours are read, not passed
  useEffect(() => {
    const host = box.current;
    if (!host) return;
    const long = (atS.at(-1) ?? 0) - (atS[0] ?? 0) > 2 * DAY_S;
    const newest = Math.max(
      ...lines.map((line) => line.values.findLastIndex((value) => value !== null)),
    );
    const show = (at: number | null) => {
      const index = at ?? newest;
      lines.forEach((line, place) => {
        const target = values.current[place];
        const value = line.values[index];
        if (target) target.textContent = value == null ? "–" : format(value);
      });
      const time = atS[index];
      if (said.current)
        said.current.textContent = time === undefined ? "" : dateTime(time * 1000, zone);
    };
    const chart = new uPlot(
      {
        width: host.clientWidth || 300,
        height,
        padding: [6, 28, 0, 0],
        legend: { show: false },
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
        scales: { x: { time: true }, y: { range: (_, __, top) => [0, (top || 0) * 1.12 || 1] } },
        axes: axes(format, (seconds) =>
          long
            ? dateTime(seconds * 1000, zone).slice(5, 10)
            : clock(seconds * 1000, zone).slice(0, 5),
        ),
        series: [
          {},
          ...lines.map((line, index) => ({
            label: line.label,
            stroke: colourOf(line.tint),
            width: 1.5,
            ...(index === 0 ? { fill: fade(colourOf(line.tint)) } : {}),
            // A value between two holes has no line of its own.
            points: { show: lines.length > 0 && measured(line.values) < 3, size: 5 },
            spanGaps: false,
          })),
        ],
        hooks: { setCursor: [(plot) => show(plot.cursor.idx ?? null)] },
      },
      [[...atS], ...lines.map((line) => [...line.values])] as uPlot.AlignedData,
      host,
    );
    show(null);
    const sizes = new ResizeObserver(() => chart.setSize({ width: host.clientWidth, height }));
    sizes.observe(host);
    return () => {
      sizes.disconnect();
      chart.destroy();
    };
  }, [atS, lines, theme, zone, height, format]);

  return (
    <figure className="m-0 min-w-0" aria-label={label}>
      <Legend
        lines={lines}
        figure={(index, element) => {
          values.current[index] = element;
        }}
      >
        <span className="num ml-auto text-faint">
          <span ref={said} /> · {stepName(stepS)} a point
        </span>
      </Legend>
      <div ref={box} style={{ height }} />
    </figure>
  );
}

const stepName = (seconds: number) =>
  seconds < 60 ? `${seconds} s` : seconds < 3_600 ? `${seconds / 60} min` : `${seconds / 3_600} h`;

const measured = (values: readonly (number | null)[]) =>
  values.reduce<number>((count, value) => count + (value === null ? 0 : 1), 0);
