import type { LucideIcon } from "lucide-react";
import { DatabaseZap, ServerOff, TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";
import { plural } from "@/lib/format";
import { useLivePart } from "@/live/store";
import { useHealth } from "./health";

/** What is wrong with the platform as a whole; above every page. */
export function Banner() {
  const { database, impaired } = useHealth();
  const silent = useLivePart("overview", (data) => data.silent);
  const measured = useLivePart("overview", (data) => data.measured);
  return (
    <>
      {database === "away" && (
        <Line icon={DatabaseZap}>
          <b>Database unreachable.</b> Live figures continue; lists may be old, and nothing can be
          changed.
        </Line>
      )}
      {impaired.length > 0 && (
        <Line icon={TriangleAlert}>
          <b>Control service impaired.</b> {impaired.join("; ")}
        </Line>
      )}
      {silent && silent.length > 0 && (
        <Line icon={ServerOff}>
          <b>
            {measured === false
              ? "No engine sends telemetry: figures are unknown."
              : `${plural(silent.length, "node sends", "nodes send")} no telemetry.`}
          </b>{" "}
          {silent.join(", ")}
        </Line>
      )}
    </>
  );
}

function Line({ icon: Icon, children }: { icon: LucideIcon; children: ReactNode }) {
  return (
    <p
      role="status"
      className="flex items-start gap-2 border-warn/40 border-b bg-warn-soft px-5 py-2 text-sm"
    >
      <Icon aria-hidden className="mt-0.5 size-4 shrink-0 text-warn" />
      <span className="min-w-0 break-words">{children}</span>
    </p>
  );
}
