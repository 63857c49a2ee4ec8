import { useEffect, useRef } from "react";
import { usePrefs } from "@/lib/prefs";
import { type LiveStore, live } from "@/live/store";
import { colourOf, token } from "./theme";

interface Props {
  channel: string;
  name: string;
  label: string;
  width?: number;
  height?: number;
  seconds?: number;
  tint?: number;
  store?: LiveStore;
}

/** The shape of the last minutes; its numbers stand beside it. */
export function Sparkline(props: Props) {
  const {
    channel,
    name,
    label,
    width = 96,
    height = 22,
    seconds = 120,
    tint = 1,
    store = live,
  } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const { theme } = usePrefs();

  // biome-ignore lint/correctness/useExhaustiveDependencies: colours are read again when the theme changes
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    const ratio = globalThis.devicePixelRatio || 1;
    element.width = width * ratio;
    element.height = height * ratio;
    const stroke = colourOf(tint);
    const base = token("--line-strong");
    let queued = 0;
    const draw = () => {
      queued = 0;
      const ring = store.ring(channel);
      const span = ring.span(seconds, 10);
      const [times, values] = ring.window([name], span);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.fillStyle = base;
      context.fillRect(0, height - 1, width, 1);
      if (!times || !values || times.length < 2) return;
      let top = 0;
      for (const value of values) if (value > top) top = value;
      const end = times[times.length - 1] ?? 0;
      context.beginPath();
      let drawing = false;
      for (let at = 0; at < values.length; at += 1) {
        const value = values[at] ?? Number.NaN;
        if (Number.isNaN(value)) {
          drawing = false;
          continue;
        }
        const x = width - ((end - (times[at] ?? 0)) / span) * width;
        const y = height - 1.5 - (top > 0 ? value / top : 0) * (height - 4);
        if (drawing) context.lineTo(x, y);
        else context.moveTo(x, y);
        drawing = true;
      }
      context.strokeStyle = stroke;
      context.lineWidth = 1.4;
      context.lineJoin = "round";
      context.stroke();
    };
    draw();
    const stop = store.onFrame(() => {
      if (!queued) queued = requestAnimationFrame(draw);
    });
    return () => {
      stop();
      cancelAnimationFrame(queued);
    };
  }, [channel, name, width, height, seconds, tint, store, theme]);

  return <canvas ref={canvas} role="img" aria-label={label} style={{ width, height }} />;
}
