import { Outlet, useNavigate, useRouter, useRouterState } from "@tanstack/react-router";
import {
  CirclePlay,
  Clock,
  FileCode,
  Keyboard,
  LogOut,
  Moon,
  PanelLeft,
  Plus,
  Send,
  Sun,
} from "lucide-react";
import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { http } from "@/api/client";
import { trafficQuery } from "@/api/queries";
import { getPrefs, isDark, setPref } from "@/lib/prefs";
import { browserWorld, LiveLink } from "@/live/socket";
import { live, useLink, useLivePart } from "@/live/store";
import { Dialog } from "@/ui/dialog";
import { Keys } from "@/ui/keys";
import { toast } from "@/ui/toast";
import { Banner } from "./banner";
import { useFinder } from "./finder";
import { useHotkeys } from "./hotkeys";
import { type Place, placesFor } from "./nav";
import type { Doing } from "./palette";
import { queries } from "./query-client";
import { signOut, useIdentity, useMay } from "./session";
import { Sidebar } from "./sidebar";
import { Topbar } from "./topbar";

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
  const groups = placesFor(may);
  const places = groups.flatMap((group) => group.places);
  const path = useRouterState({ select: (state) => state.location.pathname });
  const main = useRef<HTMLElement>(null);
  const link = useLink();
  // Figures that are old are greyed: a badge in the corner is easily missed.
  const fresh = link !== "stale" && link !== "offline" && link !== "denied";
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
  const creations = [
    {
      right: "subscriptions:write",
      name: "Create a subscription",
      run: () => navigate({ to: "/subscriptions", search: { create: true } }),
    },
    {
      right: "rate_limits:write",
      name: "Create a rate limit policy",
      run: () => navigate({ to: "/limits", search: { create: true } }),
    },
    {
      right: "alert_rules:write",
      name: "Create an alert rule",
      run: () => navigate({ to: "/alerts", search: { tab: "rules", create: true } }),
    },
    {
      right: "pipelines:write",
      name: "Create a pipeline",
      run: () => navigate({ to: "/pipelines", search: { create: true } }),
    },
    {
      right: "mirrors:write",
      name: "Create a mirror",
      run: () => navigate({ to: "/mirrors", search: { create: true } }),
    },
    {
      right: "keys:write",
      name: "Create an API key",
      run: () => navigate({ to: "/access", search: { tab: "keys", create: true } }),
    },
    {
      right: "users:write",
      name: "Add a user",
      run: () => navigate({ to: "/access", search: { tab: "users", create: true } }),
    },
  ];
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
    ...(may("messages:publish")
      ? [
          {
            id: "publish",
            name: "Publish a message",
            icon: Send,
            words: ["send"],
            run: () => navigate({ to: "/messages", search: { view: "publish" } }),
          },
        ]
      : []),
    ...creations
      .filter((one) => may(one.right))
      .map(({ right, ...one }) => ({ ...one, id: right, icon: Plus, words: ["new", "add"] })),
    ...(may("traffic:write")
      ? [
          {
            id: "traffic",
            name: "Start example traffic",
            icon: CirclePlay,
            words: ["demo", "sample"],
            run: () => startExample().then(() => navigate({ to: "/" })),
          },
        ]
      : []),
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
      words: ["time zone", "utc", "local"],
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
    ...places.map((place) => [`g ${place.key}`, () => navigate({ to: place.path })] as const),
  ]);
  // A dialog may still be loading: its first letters are no shortcuts.
  useHotkeys(palette || yaml || keys ? {} : bindings);
  const find = useFinder(palette, may);

  return (
    <div className="flex h-full">
      <a
        href="#main"
        className="sr-only z-50 rounded bg-accent px-3 py-1 text-accent-ink focus:not-sr-only focus:absolute focus:top-2 focus:left-2"
      >
        Skip to the page
      </a>
      <Sidebar firing={firing} groups={groups} />
      <div className="flex min-w-0 flex-1 flex-col">
        <Topbar
          user={identity ? { name: identity.name, role: identity.role } : null}
          onPalette={() => setPalette(true)}
          onKeys={() => setKeys(true)}
          {...(may("apply:write") || may("export:read") ? { onYaml: () => setYaml(true) } : {})}
          onSignOut={leave}
        />
        <Banner />
        <main
          ref={main}
          id="main"
          data-fresh={fresh}
          tabIndex={-1}
          className="min-h-0 flex-1 overflow-y-auto outline-none"
        >
          <Outlet />
        </main>
      </div>
      {palette && (
        <Suspense>
          <Palette open onOpenChange={setPalette} {...{ doings, find, places }} />
        </Suspense>
      )}
      {yaml && (
        <Suspense>
          <ApplyDialog onClose={() => setYaml(false)} />
        </Suspense>
      )}
      <KeysHelp open={keys} onOpenChange={setKeys} doings={doings} places={places} />
    </div>
  );
}

/** The first example that the service has, switched on. */
async function startExample(): Promise<void> {
  try {
    const { items } = await queries.fetchQuery(trafficQuery);
    const name = items[0]?.metadata.name;
    if (name) await http.POST("/api/v1/traffic/{name}/start", { params: { path: { name } } });
    toast.success("Example traffic is on");
  } catch (error) {
    toast.error(error instanceof Error ? error.message : String(error));
  }
  queries.invalidateQueries();
}

function focusSearch(): boolean {
  const field = document.querySelector<HTMLInputElement>("main input[type=search]");
  field?.focus();
  return field !== null;
}

function KeysHelp({
  open,
  onOpenChange,
  doings,
  places,
}: {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  doings: readonly Doing[];
  places: readonly Place[];
}) {
  const rows: [string, string][] = [
    ["Find or do anything", "mod+k"],
    ["Search on this page", "/"],
    ...doings.flatMap((doing): [string, string][] =>
      doing.keys ? [[doing.name, doing.keys]] : [],
    ),
    ...places.map((place): [string, string] => [place.name, `g ${place.key}`]),
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
