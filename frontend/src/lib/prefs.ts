// What a person has chosen, kept in this browser: theme, time zone, sidebar, recent places.
import { useSyncExternalStore } from "react";

export type Theme = "system" | "dark" | "light";
export type Zone = "utc" | "local";

interface Prefs {
  theme: Theme;
  zone: Zone;
  sidebar: "wide" | "narrow";
  windowSeconds: number;
  /** How far back history charts look. */
  historyRange: string;
}

const DEFAULTS: Prefs = {
  theme: "system",
  zone: "local",
  sidebar: "wide",
  windowSeconds: 300,
  historyRange: "24h",
};
const listeners = new Set<() => void>();

function read<K extends keyof Prefs>(name: K): Prefs[K] {
  try {
    const raw = localStorage.getItem(`tidecast.${name}`);
    if (raw === null) return DEFAULTS[name];
    return (typeof DEFAULTS[name] === "number" ? Number(raw) : raw) as Prefs[K];
  } catch {
    return DEFAULTS[name];
  }
}

let prefs: Prefs = {
  theme: read("theme"),
  zone: read("zone"),
  sidebar: read("sidebar"),
  windowSeconds: read("windowSeconds"),
  historyRange: read("historyRange"),
};

export const getPrefs = (): Prefs => prefs;

export function setPref<K extends keyof Prefs>(name: K, value: Prefs[K]): void {
  prefs = { ...prefs, [name]: value };
  try {
    localStorage.setItem(`tidecast.${name}`, String(value));
  } catch {
    // Private windows may refuse storage: the choice then lasts as long as the page.
  }
  if (name === "theme") applyTheme();
  for (const listener of listeners) listener();
}

export function usePrefs(): Prefs {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, getPrefs);
}

const darkQuery = () => globalThis.matchMedia?.("(prefers-color-scheme: dark)");

export function isDark(theme: Theme = prefs.theme): boolean {
  return theme === "system" ? (darkQuery()?.matches ?? true) : theme === "dark";
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

export function watchSystemTheme(): void {
  darkQuery()?.addEventListener("change", () => {
    applyTheme();
    for (const listener of listeners) listener();
  });
}
