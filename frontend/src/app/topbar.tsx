import {
  CircleUser,
  Clock,
  FileCode,
  Keyboard,
  LogOut,
  Monitor,
  Moon,
  Search,
  Sun,
} from "lucide-react";
import { useEffect, useState } from "react";
import { cn } from "@/lib/cn";
import { duration } from "@/lib/format";
import { isDark, setPref, type Theme, usePrefs } from "@/lib/prefs";
import { clock } from "@/lib/time";
import { type LinkState, live, useLink, useWaiting } from "@/live/store";
import { IconButton } from "@/ui/button";
import { Keys } from "@/ui/keys";
import { Menu, MenuItem, MenuLabel, MenuLine } from "@/ui/menu";
import { Segments } from "@/ui/segments";
import { Tip } from "@/ui/tip";

const LINKS: Record<LinkState | "loading", { word: string; tone: string; says: string }> = {
  live: { word: "Live", tone: "text-good", says: "Figures are at most a second old." },
  loading: {
    word: "Loading",
    tone: "text-info",
    says: "The figures of this page have not arrived yet.",
  },
  connecting: { word: "Connecting", tone: "text-info", says: "Waiting for figures." },
  stale: {
    word: "Stale",
    tone: "text-warn",
    says: "No new figures: the figures shown are old. Traffic does not depend on this page.",
  },
  paused: {
    word: "Paused",
    tone: "text-info",
    says: "Live figures pause while the page is hidden.",
  },
  offline: {
    word: "Offline",
    tone: "text-bad",
    says: "The control service does not answer. Engines continue with their last topology.",
  },
  denied: {
    word: "No access",
    tone: "text-bad",
    says: "Your session does not allow live figures.",
  },
};

/** How old the figures are: a shape, a word and a clock; never only a colour. */
function LiveBadge() {
  const state = useLink();
  const waiting = useWaiting();
  const link = state === "live" && waiting ? "loading" : state;
  const { zone } = usePrefs();
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const { receivedMs, atMs } = live.times;
  const age = receivedMs ? (now - receivedMs) / 1000 : 0;
  const { word, tone, says } = LINKS[link];
  const old = (link === "stale" || link === "offline") && receivedMs > 0;
  return (
    <Tip text={says}>
      <button
        type="button"
        data-testid="live-badge"
        data-link={link}
        className="inline-flex h-7 items-center gap-2 rounded-md border px-2 text-xs"
      >
        <span className={cn("relative flex size-2", tone)}>
          {link === "live" && (
            <span className="absolute inset-0 animate-ping rounded-full bg-current opacity-30 [animation-duration:2s]" />
          )}
          <span
            className={cn(
              "size-2 rounded-full",
              link === "live" ? "bg-current" : "border-2 border-current",
            )}
          />
        </span>
        <span role="status" className="font-medium">
          {word}
        </span>
        <span className="num text-faint max-sm:hidden">
          {old ? `${duration(Math.round(age))} old` : clock(atMs || now, zone)}
        </span>
      </button>
    </Tip>
  );
}

const WINDOWS = [
  { value: "60", label: "1m" },
  { value: "300", label: "5m" },
  { value: "600", label: "10m" },
] as const;

const THEMES: { value: Theme; label: string; icon: typeof Sun }[] = [
  { value: "system", label: "Like the system", icon: Monitor },
  { value: "light", label: "Light", icon: Sun },
  { value: "dark", label: "Dark", icon: Moon },
];

interface Props {
  user: { name: string; role: string } | null;
  onPalette: () => void;
  onKeys: () => void;
  onYaml?: () => void;
  onSignOut: () => void;
}

export function Topbar({ user, onPalette, onKeys, onYaml, onSignOut }: Props) {
  const { theme, zone, windowSeconds } = usePrefs();
  return (
    <div className="flex h-12 shrink-0 items-center gap-2 border-b bg-panel px-4">
      <button
        type="button"
        onClick={onPalette}
        aria-label="Find or do anything"
        className="flex h-7.5 w-72 min-w-0 items-center max-sm:w-auto gap-2 rounded-md border bg-canvas px-2.5 text-faint text-sm transition-colors hover:border-line-strong hover:text-muted"
      >
        <Search aria-hidden className="size-3.5 shrink-0" />
        <span className="flex flex-1 items-center gap-2 max-sm:hidden">
          <span className="flex-1 truncate text-left">Find or do anything</span>
          <Keys keys="mod+k" />
        </span>
      </button>
      <div className="ml-auto flex items-center gap-1.5">
        <LiveBadge />
        <span className="max-lg:hidden">
          <Segments
            label="Time window of charts"
            value={String(windowSeconds) as "60"}
            options={WINDOWS}
            onChange={(value) => setPref("windowSeconds", Number(value))}
          />
        </span>
        <Tip
          text={zone === "utc" ? "Times are UTC; show local" : "Times are local; show UTC"}
          keys="z"
        >
          <button
            type="button"
            data-testid="zone"
            onClick={() => setPref("zone", zone === "utc" ? "local" : "utc")}
            className="inline-flex h-7 items-center gap-1.5 rounded-md px-2 font-medium text-muted text-xs hover:bg-hover hover:text-ink"
          >
            <Clock aria-hidden className="size-3.5" />
            {zone === "utc" ? "UTC" : "Local"}
          </button>
        </Tip>
        <span className="flex items-center gap-1.5 max-sm:hidden">
          {onYaml && (
            <IconButton icon={FileCode} label="Apply or export YAML" hint="y" onClick={onYaml} />
          )}
          <IconButton icon={Keyboard} label="Keyboard shortcuts" hint="?" onClick={onKeys} />
        </span>
        <Menu trigger={<IconButton icon={isDark(theme) ? Moon : Sun} label="Theme" />}>
          <MenuLabel>Theme</MenuLabel>
          {THEMES.map((one) => (
            <MenuItem key={one.value} icon={one.icon} onSelect={() => setPref("theme", one.value)}>
              {one.label}
              {theme === one.value ? " ✓" : ""}
            </MenuItem>
          ))}
        </Menu>
        {user && (
          <Menu trigger={<IconButton icon={CircleUser} label={`Signed in as ${user.name}`} />}>
            <MenuLabel>
              {user.name} · {user.role}
            </MenuLabel>
            <MenuLine />
            <MenuItem icon={LogOut} onSelect={onSignOut}>
              Sign out
            </MenuItem>
          </Menu>
        )}
      </div>
    </div>
  );
}
