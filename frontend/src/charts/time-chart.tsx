import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { cn } from "@/lib/cn";
import { getPrefs, usePrefs } from "@/lib/prefs";
import { clock } from "@/lib/time";
import { type LiveStore, live } from "@/live/store";
import { Legend } from "./legend";
import { axes, colourOf, fade } from "./theme";

interface ChartSeries {
  key: string;
  label: string;
  /** 1 to 6; by default its place in the list. */
  tint?: number;
  dash?: boolean;
}

interface Props {
  channel: string;
  series: readonly ChartSeries[];
  format: (value: number) => string;
  /** Of the axis, where a unit has no room. */
  axis?: (value: number) => string;
  label: string;
  height?: number;
  /** Highest value the axis shows at least. */
  floor?: number;
  store?: LiveStore;
  className?: string;
  fill?: boolean;
}

/** Of an axis that has nothing to show: whole numbers stand at its lines. */
const EMPTY_TOP = 4;

/** uPlot leaves a hole at null; across NaN it draws a line. */
function withHoles([times, ...columns]: readonly Float64Array[]): uPlot.AlignedData {
  const values = columns.map((column) =>
    column.some(Number.isNaN)
      ? Array.from(column, (value) => (Number.isNaN(value) ? null : value))
      : column,
  );
  return [times ?? new Float64Array(0), ...values];
}

/** A live chart: it reads the store's arrays and draws once a frame, outside React. */
export function TimeChart(props: Props) {
  const {
    channel,
    series,
    format,
    axis = format,
    label,
    height = 150,
    floor = 0,
    store = live,
    className,
    fill = true,
  } = props;
  const box = useRef<HTMLDivElement>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const { windowSeconds, theme, zone } = usePrefs();
  const names = series.map((one) => one.key).join("\n");

  // biome-ignore lint/correctness/useExhaustiveDependencies: rebuilt when the theme or the series change
  useEffect(() => {
    const host = box.current;
    if (!host) return;
    const keys = names.split("\n");
    const read = () => withHoles(store.ring(channel).window(keys, getPrefs().windowSeconds));
    const show = (data: uPlot.AlignedData, at: number | null) => {
      for (let index = 1; index < data.length; index += 1) {
        const column = data[index];
        const value = column?.[at ?? column.length - 1];
        const target = values.current[index - 1];
        if (target) target.textContent = value == null || Number.isNaN(value) ? "–" : format(value);
      }
    };
    const now = () => store.ring(channel).newestTime() || Date.now() / 1000;
    const span = () => store.ring(channel).span(getPrefs().windowSeconds, 20);
    const chart = new uPlot(
      {
        width: host.clientWidth || 300,
        height,
        padding: [6, 28, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "live" }, points: { size: 6 }, drag: { x: false, y: false } },
        scales: {
          x: { time: true, range: () => [now() - span(), now()] },
          y: { range: (_, __, top) => [0, Math.max((top || 0) * 1.12, floor) || EMPTY_TOP] },
        },
        axes: axes(axis, (seconds) => clock(seconds * 1000, getPrefs().zone).slice(0, 8)),
        series: [
          {},
          ...series.map((one, index) => {
            const colour = colourOf(one.tint ?? index + 1);
            return {
              label: one.label,
              stroke: colour,
              width: 1.5,
              ...(one.dash ? { dash: [5, 4] } : {}),
              ...(fill && index === 0 ? { fill: fade(colour) } : {}),
              points: { show: false },
              spanGaps: false,
            };
          }),
        ],
        hooks: { setCursor: [(plot) => show(plot.data, plot.cursor.idx ?? null)] },
      },
      read(),
      host,
    );
    show(chart.data, null);
    let queued = 0;
    const draw = () => {
      queued = 0;
      const data = read();
      chart.setData(data);
      show(data, chart.cursor.idx ?? null);
    };
    const stop = store.onFrame(() => {
      if (!queued) queued = requestAnimationFrame(draw);
    });
    const sizes = new ResizeObserver(() => chart.setSize({ width: host.clientWidth, height }));
    sizes.observe(host);
    return () => {
      stop();
      cancelAnimationFrame(queued);
      sizes.disconnect();
      chart.destroy();
    };
  }, [channel, names, theme, zone, height, store, windowSeconds, floor]);

  return (
    <figure className={cn("m-0 min-w-0", className)} aria-label={label}>
      <Legend
        lines={series}
        figure={(index, element) => {
          values.current[index] = element;
        }}
      />
      <div ref={box} style={{ height }} />
    </figure>
  );
}
