import { useSyncExternalStore } from "react";

/** Whether a media query holds, now and when the window changes. */
export function useMedia(query: string): boolean {
  return useSyncExternalStore(
    (changed) => {
      const list = matchMedia(query);
      list.addEventListener("change", changed);
      return () => list.removeEventListener("change", changed);
    },
    () => matchMedia(query).matches,
  );
}

/** Phones and narrow windows: below Tailwind's `md`. */
export const SMALL = "(max-width: 767px)";
