import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { nodesQuery, recorderQuery } from "@/api/queries";
import { clock, useZone } from "@/lib/time";
import { Badge, type Tone } from "@/ui/badge";
import { Card } from "@/ui/card";
import { Segments } from "@/ui/segments";
import { Select } from "@/ui/select";
import { Failed } from "@/ui/states";

type Section = "alert" | "low" | "high";
const TONES: Record<Section, Tone> = { alert: "bad", low: "info", high: "plain" };

/** What a node noted lately: it outlives a crash of the engine. */
export function RecorderCard({ node: fixed }: { node?: string }) {
  const nodes = useQuery(nodesQuery).data?.items ?? [];
  const [chosen, setChosen] = useState("");
  const [section, setSection] = useState<Section | "all">("all");
  const node = fixed ?? (chosen || nodes[0]?.metadata.name || "");
  const page = useQuery(recorderQuery(node));
  const zone = useZone();
  const records = (page.data?.records ?? [])
    .filter((one) => section === "all" || one.section === section)
    .toReversed()
    .slice(0, 200);
  return (
    <Card
      title="Flight recorder"
      flush
      actions={
        <>
          <Segments
            label="Section"
            value={section}
            onChange={setSection}
            options={[
              { value: "all", label: "All" },
              { value: "alert", label: "Alert" },
              { value: "low", label: "Low" },
              { value: "high", label: "High" },
            ]}
          />
          {!fixed && nodes.length > 1 && (
            <Select
              label="Node"
              className="w-32"
              value={node}
              onChange={setChosen}
              options={nodes.map((one) => ({ value: one.metadata.name, label: one.metadata.name }))}
            />
          )}
        </>
      }
    >
      {page.isError && (
        <div className="p-3.5">
          <Failed error={page.error} retry={page.refetch} />
        </div>
      )}
      {records.length === 0 && !page.isError ? (
        <p className="px-3.5 pb-4 text-muted">
          No records{section === "all" ? "" : " in this section"}.
        </p>
      ) : (
        <section
          className="max-h-72 overflow-y-auto pb-2"
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
          tabIndex={0}
          aria-label="Records, newest first"
        >
          <ol>
            {records.map((one) => (
              <li
                key={`${one.at_ns}/${one.writer}/${one.code}/${one.entity}`}
                className="flex items-baseline gap-2 px-3.5 py-0.5 text-xs"
              >
                <time className="num shrink-0 font-mono text-faint" dateTime={one.at}>
                  {clock(one.at, zone, "millis")}
                </time>
                <Badge tone={TONES[one.section]} className="w-10 justify-center">
                  {one.section}
                </Badge>
                <span className="shrink-0 text-muted">{one.writer}</span>
                <span className="min-w-0 break-words">{one.text || one.code}</span>
              </li>
            ))}
          </ol>
        </section>
      )}
    </Card>
  );
}
