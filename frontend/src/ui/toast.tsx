import { CircleCheck, CircleX } from "lucide-react";
import { useSyncExternalStore } from "react";
import { cn } from "@/lib/cn";

interface Toast {
  id: number;
  text: string;
  good: boolean;
}

const SHOWN_MAX = 4;
const GOOD_MS = 4_000;
const BAD_MS = 10_000;

let toasts: readonly Toast[] = [];
let last = 0;
const listeners = new Set<() => void>();

function change(next: readonly Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

function show(text: string, good: boolean): void {
  last += 1;
  const id = last;
  change([...toasts, { id, text, good }].slice(-SHOWN_MAX));
  setTimeout(() => change(toasts.filter((one) => one.id !== id)), good ? GOOD_MS : BAD_MS);
}

/** A word on what was done, or why it was not; it goes by itself. */
export const toast = {
  success: (text: string) => show(text, true),
  error: (text: string) => show(text, false),
};

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function Toaster() {
  const shown = useSyncExternalStore(subscribe, () => toasts);
  return (
    // Nothing in it can be clicked: a click beside a dialog would close that.
    <ul
      aria-live="polite"
      className="pointer-events-none fixed right-4 bottom-4 z-60 flex w-88 max-w-[calc(100vw-2rem)] flex-col gap-2"
    >
      {shown.map(({ id, text, good }) => (
        <li
          key={id}
          className="flex animate-in items-start gap-2.5 rounded-lg border bg-raised px-3.5 py-2.5 text-sm shadow-pop"
        >
          {good ? (
            <CircleCheck aria-hidden className="mt-0.5 size-4 shrink-0 text-good" />
          ) : (
            <CircleX aria-label="Error:" className="mt-0.5 size-4 shrink-0 text-bad" />
          )}
          <span className={cn("min-w-0 break-words", !good && "font-medium")}>{text}</span>
        </li>
      ))}
    </ul>
  );
}
