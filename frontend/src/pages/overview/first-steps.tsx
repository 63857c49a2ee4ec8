import { useQuery } from "@tanstack/react-query";
import { CirclePlay, CircleStop, X } from "lucide-react";
import { useState } from "react";
import { http } from "@/api/client";
import { trafficQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { exact } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { Command } from "@/ui/code";
import { CopyAs } from "@/ui/copy-as";

const HIDDEN = "tidecast.firstSteps";

/**
 * Example traffic by one click, and the commands that send a first message. A platform that has
 * topics of its own needs neither: then it is there only while the example runs.
 */
export function FirstSteps({ topics }: { topics: number }) {
  const [hidden, setHidden] = useState(() => localStorage.getItem(HIDDEN) === "hidden");
  const traffic = useQuery(trafficQuery).data;
  const { busy, act } = useAct();
  const tidecast = useTidecast();
  const may = useMay();
  const example = traffic?.items[0];
  const running = example?.spec.running ?? false;
  if ((hidden || topics > 0) && !running) return null;
  const params = { path: { name: example?.metadata.name ?? "" } };
  const toggle = () =>
    example &&
    act(
      () =>
        running
          ? http.POST("/api/v1/traffic/{name}/stop", { params })
          : http.POST("/api/v1/traffic/{name}/start", { params }),
      running ? "Example traffic is off" : "Example traffic is on",
    );
  const name = example?.metadata.name ?? "example";
  const switcher = example && may("traffic:write") && (
    <span className="flex items-center gap-1">
      <Button
        look={running ? "plain" : "primary"}
        icon={running ? CircleStop : CirclePlay}
        busy={busy}
        onClick={toggle}
      >
        {running ? "Stop example traffic" : "Start example traffic"}
      </Button>
      <CopyAs
        small
        action={{
          method: "POST",
          path: `/api/v1/traffic/${name}/${running ? "stop" : "start"}`,
        }}
      />
    </span>
  );
  if (running) {
    return (
      <div className="mb-3 flex flex-wrap items-center gap-3 rounded-lg border border-accent/30 bg-accent-soft px-3.5 py-2">
        <Badge tone="accent" icon={CirclePlay}>
          Example traffic
        </Badge>
        <p className="num min-w-0 flex-1 text-sm">
          <b className="font-medium font-mono text-xs">{name}</b> ·{" "}
          {exact(example?.spec.messages_per_s)} messages/s of {exact(example?.spec.message_bytes)}{" "}
          bytes
        </p>
        {switcher}
      </div>
    );
  }
  return (
    <section aria-label="First steps" className="mb-3 rounded-lg border bg-panel p-4">
      <header className="mb-2.5 flex flex-wrap items-start gap-x-4 gap-y-2">
        <div className="min-w-0 flex-1 basis-56">
          <h2 className="font-semibold">Send your first message</h2>
          <p className="text-muted text-sm">
            Start example traffic and watch it, or send a message of your own from two shells.
          </p>
        </div>
        {switcher}
        <IconButton
          icon={X}
          label="Hide first steps"
          onClick={() => {
            localStorage.setItem(HIDDEN, "hidden");
            setHidden(true);
          }}
        />
      </header>
      <div className="grid gap-2 lg:grid-cols-2">
        <Command text={tidecast("sub", "hello")} />
        <Command text={tidecast("pub", "hello", "--message", "first message")} />
      </div>
    </section>
  );
}
