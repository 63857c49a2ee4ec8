import { Link } from "@tanstack/react-router";
import { PanelLeft } from "lucide-react";
import { cn } from "@/lib/cn";
import { SMALL, useMedia } from "@/lib/media";
import { setPref, usePrefs } from "@/lib/prefs";
import { IconButton } from "@/ui/button";
import { Tip } from "@/ui/tip";
import type { Place, placesFor } from "./nav";

export function Mark({ className }: { className?: string }) {
  return (
    <svg viewBox="0 0 24 18" fill="none" aria-hidden className={cn("text-accent", className)}>
      <g stroke="currentColor" strokeWidth="2.4" strokeLinecap="round">
        <path d="M2 4c3.300-3.200 6.700-3.200 10 0s6.700 3.200 10 0" />
        <path d="M2 9c3.300-3.200 6.700-3.200 10 0s6.700 3.200 10 0" opacity=".6" />
        <path d="M2 14c3.300-3.200 6.700-3.200 10 0s6.700 3.200 10 0" opacity=".32" />
      </g>
    </svg>
  );
}

function NavLink({ place, narrow, badge }: { place: Place; narrow: boolean; badge?: number }) {
  const link = (
    <Link
      to={place.path}
      activeOptions={{ exact: place.path === "/", includeSearch: false }}
      aria-label={narrow ? place.name : undefined}
      className={cn(
        "group relative flex h-7.5 items-center gap-2.5 rounded-md text-muted text-sm transition-colors hover:bg-hover hover:text-ink",
        "aria-[current=page]:bg-hover aria-[current=page]:font-medium aria-[current=page]:text-ink",
        narrow ? "justify-center" : "px-2.5",
      )}
    >
      <place.icon aria-hidden className="size-4 shrink-0 group-aria-[current=page]:text-accent" />
      {!narrow && <span className="flex-1 truncate">{place.name}</span>}
      {badge ? (
        <span
          className={cn(
            "num rounded-full bg-bad-soft px-1.5 font-semibold text-2xs text-bad",
            narrow && "absolute top-0 right-0.5",
          )}
        >
          {badge}
          <span className="sr-only"> firing</span>
        </span>
      ) : null}
    </Link>
  );
  return (
    <li>
      {narrow ? (
        <Tip text={place.name} keys={`g ${place.key}`} side="right">
          {link}
        </Tip>
      ) : (
        link
      )}
    </li>
  );
}

export function Sidebar({
  firing,
  groups,
}: {
  firing: number;
  groups: ReturnType<typeof placesFor>;
}) {
  const small = useMedia(SMALL);
  const narrow = usePrefs().sidebar === "narrow" || small;
  return (
    <nav
      aria-label="Main"
      className={cn(
        "flex h-full shrink-0 flex-col border-r bg-panel transition-[width]",
        narrow ? "w-13" : "w-52",
      )}
    >
      <div className={cn("flex h-12 items-center gap-2.5", narrow ? "justify-center" : "px-4")}>
        <Mark className="w-6 shrink-0" />
        {!narrow && (
          <span className="font-semibold text-[0.9375rem] tracking-[-0.02em]">Tidecast</span>
        )}
      </div>
      <div className="flex-1 overflow-y-auto px-2 pb-2">
        {groups.map((group) => (
          <div key={group.title} className="pt-2.5">
            {narrow ? (
              <div className="mx-2 mb-2 h-px bg-line" />
            ) : (
              <h2 className="px-2.5 pb-1 font-medium text-2xs text-faint">{group.title}</h2>
            )}
            <ul className="flex flex-col gap-px">
              {group.places.map((place) => (
                <NavLink
                  key={place.path}
                  place={place}
                  narrow={narrow}
                  {...(place.path === "/alerts" ? { badge: firing } : {})}
                />
              ))}
            </ul>
          </div>
        ))}
      </div>
      {!small && (
        <div className={cn("flex border-t p-2", narrow && "justify-center")}>
          <IconButton
            icon={PanelLeft}
            label={narrow ? "Widen the sidebar" : "Narrow the sidebar"}
            hint="["
            onClick={() => setPref("sidebar", narrow ? "wide" : "narrow")}
          />
        </div>
      )}
    </nav>
  );
}
