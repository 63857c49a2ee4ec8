import { useQuery } from "@tanstack/react-query";
import { Outlet, useNavigate, useRouter, useRouterState } from "@tanstack/react-router";
import {
  Clock,
  FileCode,
  Keyboard,
  Layers,
  LogOut,
  Moon,
  PanelLeft,
  Plus,
  Send,
  Split,
  Sun,
} from "lucide-react";
import { lazy, Suspense, useEffect, useMemo, useRef, useState } from "react";
import { subscriptionsQuery } from "@/api/queries";
import { getPrefs, isDark, setPref } from "@/lib/prefs";
import { browserWorld, LiveLink } from "@/live/socket";
import { live, useLivePart } from "@/live/store";
import { Dialog } from "@/ui/dialog";
import { Keys } from "@/ui/keys";
import { useHotkeys } from "./hotkeys";
import { PLACES } from "./nav";
import type { Doing, Found } from "./palette";
import { queries } from "./query-client";
import { signOut, useIdentity, useMay } from "./session";
import { Sidebar } from "./sidebar";
import { Topbar } from "./topbar";
import { useTopicNames } from "./topic-names";

const ApplyDialog = lazy(() =>
  import("./apply").then((module) => ({ default: module.ApplyDialog })),
);
const Palette = lazy(() => import("./palette").then((module) => ({ default: module.Palette })));

export function Shell() {
  const [palette, setPalette] = useState(false);
  const [keys, setKeys] = useState(false);
  const [yaml, setYaml] = useState(false);
  const navigate = useNavigate();
  const router = useRouter();
  const identity = useIdentity();
  const may = useMay();
  const path = useRouterState({ select: (state) => state.location.pathname });
  const main = useRef<HTMLElement>(null);
  const firing = useLivePart("overview", (data) => data.alerts_firing) ?? 0;

  useEffect(() => {
    const link = new LiveLink(live, browserWorld());
    return () => link.stop();
  }, []);

  // A new page starts at its top, and a screen reader at its heading.
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is the path that matters
  useEffect(() => {
    main.current?.scrollTo(0, 0);
  }, [path]);

  const leave = async () => {
    await signOut();
    await router.invalidate();
    navigate({ to: "/login" });
  };
  const doings: Doing[] = [
    ...(may("topics:write")
      ? [
          {
            id: "new-topic",
            name: "Create a topic",
            icon: Plus,
            keys: "c",
            words: ["new", "add"],
            run: () => navigate({ to: "/topics", search: { create: true } }),
          },
        ]
      : []),
    {
      id: "publish",
      name: "Publish a message",
      icon: Send,
      words: ["send"],
      run: () => navigate({ to: "/messages" }),
    },
    ...(may("apply:write") || may("export:read")
      ? [
          {
            id: "yaml",
            name: "Apply or export YAML",
            icon: FileCode,
            keys: "y",
            words: ["plan", "import", "backup", "prune"],
            run: () => setYaml(true),
          },
        ]
      : []),
    {
      id: "theme",
      name: isDark() ? "Switch to light" : "Switch to dark",
      icon: isDark() ? Sun : Moon,
      keys: "d",
      words: ["theme", "dark mode", "light mode"],
      run: () => setPref("theme", isDark() ? "light" : "dark"),
    },
    {
      id: "zone",
      name: getPrefs().zone === "utc" ? "Show local times" : "Show times in UTC",
      icon: Clock,
      keys: "z",
      words: ["time zone"],
      run: () => setPref("zone", getPrefs().zone === "utc" ? "local" : "utc"),
    },
    {
      id: "sidebar",
      name: "Narrow or widen the sidebar",
      icon: PanelLeft,
      keys: "[",
      run: () => setPref("sidebar", getPrefs().sidebar === "wide" ? "narrow" : "wide"),
    },
    { id: "keys", name: "Keyboard shortcuts", icon: Keyboard, keys: "?", run: () => setKeys(true) },
    { id: "out", name: "Sign out", icon: LogOut, words: ["log out"], run: leave },
  ];
  const bindings = Object.fromEntries([
    ["mod+k", () => setPalette(true)],
    ["/", () => focusSearch() || setPalette(true)],
    ...doings.flatMap((doing) => (doing.keys ? [[doing.keys, doing.run] as const] : [])),
    ...PLACES.flatMap((group) =>
      group.places.map((place) => [`g ${place.key}`, () => navigate({ to: place.path })] as const),
    ),
  ]);
  useHotkeys(bindings);
  const find = useFinder(palette);

  return (
    <div className="flex h-full">
      <a
        href="#main"
        className="sr-only z-50 rounded bg-accent px-3 py-1 text-accent-ink focus:not-sr-only focus:absolute focus:top-2 focus:left-2"
      >
        Skip to the page
      </a>
      <Sidebar firing={firing} admin={may("users:read") || may("keys:read")} />
      <div className="flex min-w-0 flex-1 flex-col">
        <Topbar
          user={identity ? { name: identity.name, role: identity.role } : null}
          onPalette={() => setPalette(true)}
          onKeys={() => setKeys(true)}
          {...(may("apply:write") || may("export:read") ? { onYaml: () => setYaml(true) } : {})}
          onSignOut={leave}
        />
        <main
          ref={main}
          id="main"
          tabIndex={-1}
          className="min-h-0 flex-1 overflow-y-auto outline-none"
        >
          <Outlet />
        </main>
      </div>
      {palette && (
        <Suspense>
          <Palette open onOpenChange={setPalette} doings={doings} find={find} />
        </Suspense>
      )}
      {yaml && (
        <Suspense>
          <ApplyDialog onClose={() => setYaml(false)} />
        </Suspense>
      )}
      <KeysHelp open={keys} onOpenChange={setKeys} doings={doings} />
    </div>
  );
}

function focusSearch(): boolean {
  const field = document.querySelector<HTMLInputElement>("main input[type=search]");
  field?.focus();
  return field !== null;
}

/** Names for the palette: topics by the service's search, the rest from what is loaded. */
function useFinder(open: boolean): (query: string) => readonly Found[] {
  const [query, setQuery] = useState("");
  const topics = useTopicNames(open ? query : "", open);
  const subscriptions = useQuery({ ...subscriptionsQuery, enabled: open }, queries).data;
  return useMemo(
    () => (text: string) => {
      if (text !== query) queueMicrotask(() => setQuery(text));
      const has = (name: string) => name.toLowerCase().includes(text.toLowerCase());
      return [
        ...topics
          .filter(has)
          .slice(0, 12)
          .map((name) => ({
            kind: "topic",
            name,
            icon: Layers,
            to: `/topics/${encodeURIComponent(name)}`,
          })),
        ...(subscriptions?.items ?? [])
          .map((one) => one.metadata.name)
          .filter(has)
          .slice(0, 8)
          .map((name) => ({
            kind: "subscription",
            name,
            icon: Split,
            to: `/subscriptions/${encodeURIComponent(name)}`,
          })),
      ];
    },
    [query, topics, subscriptions],
  );
}

function KeysHelp({
  open,
  onOpenChange,
  doings,
}: {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  doings: readonly Doing[];
}) {
  const rows: [string, string][] = [
    ["Find or do anything", "mod+k"],
    ["Search on this page", "/"],
    ...doings.flatMap((doing): [string, string][] =>
      doing.keys ? [[doing.name, doing.keys]] : [],
    ),
    ...PLACES.flatMap((group) =>
      group.places.map((place): [string, string] => [place.name, `g ${place.key}`]),
    ),
  ];
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title="Keyboard shortcuts">
      <ul className="grid grid-cols-2 gap-x-8 gap-y-1 pb-4">
        {rows.map(([name, key]) => (
          <li key={name} className="flex items-center justify-between gap-2 text-sm">
            {name}
            <Keys keys={key} />
          </li>
        ))}
      </ul>
      <p className="pb-3 text-faint text-xs">
        In tables: arrow keys move, Enter opens, Home and End jump.
      </p>
    </Dialog>
  );
}
