import { useEffect, useRef } from "react";

type Hotkeys = Record<string, () => void>;

const SEQUENCE_MS = 900;

const typing = (target: EventTarget | null) =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/**
 * Keys for the whole page: `"mod+k"`, `"?"`, or two in a row, `"g t"`. While somebody types, only those
 * with `mod` count; inside a dialog none but those do.
 */
export function useHotkeys(keys: Hotkeys): void {
  // The page renders again with each piece of live data: that must not part the two keys of a pair.
  const latest = useRef(keys);
  useEffect(() => {
    latest.current = keys;
  }, [keys]);
  useEffect(() => {
    let first = "";
    let timer: ReturnType<typeof setTimeout> | undefined;
    const press = (event: KeyboardEvent) => {
      const keys = latest.current;
      if (event.defaultPrevented || event.isComposing || event.altKey) return;
      const mod = event.ctrlKey || event.metaKey;
      const name =
        (mod ? "mod+" : "") + (event.key.length === 1 ? event.key.toLowerCase() : event.key);
      if (!mod && (typing(event.target) || document.querySelector("[role=dialog],[role=menu]")))
        return;
      const action = (first && keys[`${first} ${name}`]) || keys[name];
      clearTimeout(timer);
      first = "";
      if (action) {
        event.preventDefault();
        action();
        return;
      }
      if (Object.keys(keys).some((key) => key.startsWith(`${name} `))) {
        first = name;
        timer = setTimeout(() => {
          first = "";
        }, SEQUENCE_MS);
      }
    };
    document.addEventListener("keydown", press);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("keydown", press);
    };
  }, []);
}
