import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { CirclePause, CirclePlay, Pencil, Rewind, Skull, Trash2 } from "lucide-react";
import { useState } from "react";
import { http, type Schemas } from "@/api/client";
import { type Subscription, subscriptionQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useMay } from "@/app/session";
import { HistoryCard } from "@/charts/history-card";
import { TimeChart } from "@/charts/time-chart";
import { compact, duration, exact, rate } from "@/lib/format";
import { useLivePart } from "@/live/store";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card, Facts } from "@/ui/card";
import { Confirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { DangerRow, DangerZone } from "@/ui/danger";
import { Page } from "@/ui/page";
import { Stat } from "@/ui/stat";
import { Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { SubscriptionEditor } from "./editor";
import { Redrive } from "./redrive";
import { Seek } from "./seek";
import {
  cursorShares,
  drainNote,
  exactOr,
  lagNote,
  lostOf,
  reasonOf,
  SubscriptionState,
} from "./state";

const route = getRouteApi("/app/subscriptions/$name");
type Cursor = Schemas["QueueCursor"];

const CURSORS: Column<Cursor>[] = [
  { id: "queue", head: "Queue", cell: (row) => row.queue },
  {
    id: "place",
    head: "Acked / in flight / remaining",
    width: "30%",
    cell: (row) => {
      const { acked, delivered } = cursorShares(row);
      return (
        <span
          className="flex h-2 overflow-hidden rounded-sm bg-raised"
          role="img"
          aria-label={`${Math.round(acked * 100)}% acked`}
        >
          <span className="bg-accent" style={{ width: `${acked * 100}%` }} />
          <span
            className="bg-[repeating-linear-gradient(135deg,var(--series-3)_0_3px,transparent_3px_5px)]"
            style={{ width: `${delivered * 100}%` }}
          />
        </span>
      );
    },
  },
  { id: "earliest", head: "Earliest", right: true, cell: (row) => exact(row.earliest) },
  { id: "acked", head: "Acked", right: true, cell: (row) => exact(row.acked) },
  { id: "delivered", head: "Delivered", right: true, cell: (row) => exact(row.delivered) },
  { id: "latest", head: "Latest", right: true, cell: (row) => exact(row.latest) },
  { id: "lag", head: "Lag (messages)", right: true, cell: (row) => exact(row.lag_messages) },
  { id: "lag_s", head: "Lag (time)", right: true, cell: (row) => duration(row.lag_s) },
  {
    id: "pressure",
    head: "Reason",
    cell: (row) => (row.pressure ? <Badge tone="warn">{reasonOf(row.pressure)}</Badge> : "–"),
  },
];

export function SubscriptionPage() {
  const { name } = route.useParams();
  const query = useQuery(subscriptionQuery(name));
  const subscription = query.data as Subscription | undefined;
  if (query.isError) {
    return (
      <Page title={name}>
        <Failed error={query.error} retry={query.refetch} />
      </Page>
    );
  }
  return subscription ? (
    <Body name={name} subscription={subscription} />
  ) : (
    <Page title={name}>
      <Loading rows={8} />
    </Page>
  );
}

function Body({ name, subscription }: { name: string; subscription: Subscription }) {
  const live = useLivePart("subscriptions", (data) => data.subscriptions[name]);
  const may = useMay()("subscriptions:write");
  const navigate = useNavigate();
  const { busy, act } = useAct();
  const [asked, setAsked] = useState<"edit" | "seek" | "redrive" | "delete" | null>(null);
  const { spec, status } = subscription;
  const params = { path: { name } };
  const close = () => setAsked(null);
  const lag = live?.lag_messages ?? status.lag_messages;
  const dead = lostOf(subscription, live);
  const cursors: Cursor[] = live?.cursors
    ? Object.entries(live.cursors).map(([queue, each]) => ({ queue, ...each }))
    : (status.cursors ?? []);
  const verb = spec.paused ? "resume" : "pause";
  const spark = (metric: string, tint: number) => ({
    channel: "subscriptions",
    name: `subscriptions/${name}/${metric}`,
    tint,
  });
  return (
    <Page
      title={name}
      badges={
        <span data-testid="subscription-state">
          <SubscriptionState state={live?.state ?? status.state ?? "unknown"} />
        </span>
      }
      lead={
        <>
          Reads{" "}
          <Link
            to="/topics/$name"
            params={{ name: spec.topic }}
            className="font-mono text-accent text-xs hover:underline"
          >
            {spec.topic}
          </Link>
        </>
      }
      actions={
        may && (
          <>
            <Button
              icon={spec.paused ? CirclePlay : CirclePause}
              busy={busy}
              onClick={() =>
                act(
                  () =>
                    spec.paused
                      ? http.POST("/api/v1/subscriptions/{name}/resume", { params })
                      : http.POST("/api/v1/subscriptions/{name}/pause", { params }),
                  spec.paused
                    ? `${name} is resumed`
                    : `${name} is paused; fetched messages are kept`,
                )
              }
            >
              {spec.paused ? "Resume" : "Pause"}
            </Button>
            <CopyAs
              small
              action={{
                method: "POST",
                path: `/api/v1/subscriptions/${encodeURIComponent(name)}/${verb}`,
              }}
            />
            <Button icon={Rewind} onClick={() => setAsked("seek")}>
              Reset position
            </Button>
            <Button icon={Skull} onClick={() => setAsked("redrive")}>
              Dead letters
            </Button>
            <Button icon={Pencil} onClick={() => setAsked("edit")}>
              Edit
            </Button>
          </>
        )
      }
    >
      <div className="flex flex-col gap-3">
        <div className="grid grid-cols-2 gap-3 lg:grid-cols-5">
          <Stat
            label="Lag"
            value={lag == null ? "–" : `${compact(Number(lag))} msg`}
            note={lagNote(lag, live?.scheduled ?? status.scheduled)}
            spark={spark("lag_messages", 4)}
          />
          <Stat
            label="Lag in time"
            value={duration(live?.lag_s ?? status.lag_s)}
            note="age of the next message"
            spark={spark("lag_s", 4)}
          />
          <Stat
            label="Delivered"
            value={rate(live?.delivered_per_s, " msg/s")}
            note={drainNote(live)}
            spark={spark("delivered_per_s", 1)}
          />
          <Stat
            label="Outstanding"
            value={exactOr(live?.outstanding ?? status.outstanding)}
            note={`of ${exact(spec.max_in_flight)} per consumer`}
          />
          <Stat
            label="Dead letters"
            value={exactOr(dead)}
            tone={dead && dead !== "0" ? "bad" : undefined}
            note={
              spec.dead_letter ? `in ${spec.dead_letter}` : "discarded: no dead-letter topic set"
            }
          />
        </div>
        <div className="grid grid-cols-1 gap-3 xl:grid-cols-3">
          <Card title="Lag" hint="messages" className="xl:col-span-2">
            <TimeChart
              channel="subscriptions"
              label={`Lag of ${name}`}
              height={170}
              format={(value) => compact(value)}
              series={[{ key: `subscriptions/${name}/lag_messages`, label: "behind", tint: 4 }]}
            />
          </Card>
          <Card title="Settings">
            <Facts
              items={[
                ["Ack", spec.ack],
                ["Ack wait", duration(spec.ack_wait_s)],
                ["Max deliveries", spec.max_deliver === 0 ? "unlimited" : exact(spec.max_deliver)],
                ["Members", exact(live?.members ?? status.members)],
                [
                  "Filter",
                  spec.filter ? (
                    <code key="f" className="font-mono text-xs">
                      {spec.filter}
                    </code>
                  ) : (
                    "none"
                  ),
                ],
                ["Waits for", reasonOf(live?.pressure ?? "") || "nothing"],
                [
                  "Generation",
                  `${exact(subscription.metadata.generation)}, applied ${exact(status.observed_generation)}`,
                ],
              ]}
            />
          </Card>
        </div>
        <HistoryCard scope="subscription" name={name} />
        <Positions cursors={cursors} />
        {may && (
          <DangerZone>
            <DangerRow
              title="Delete the subscription"
              action={
                <Button look="danger" icon={Trash2} onClick={() => setAsked("delete")}>
                  Delete
                </Button>
              }
            >
              Its position is deleted; the messages stay.
            </DangerRow>
          </DangerZone>
        )}
      </div>
      {asked === "edit" && <SubscriptionEditor name={name} onClose={close} />}
      {asked === "seek" && <Seek name={name} cursors={cursors} onClose={close} />}
      {asked === "redrive" && (
        <Redrive name={name} topic={spec.dead_letter ?? ""} count={dead ?? null} onClose={close} />
      )}
      <Confirm
        open={asked === "delete"}
        onOpenChange={(open) => !open && close()}
        title={`Delete ${name}?`}
        lead="Its position is deleted; the messages stay."
        word={name}
        verb="Delete for good"
        action={{
          method: "DELETE",
          path: `/api/v1/subscriptions/${encodeURIComponent(name)}`,
        }}
        run={async () => {
          await http.DELETE("/api/v1/subscriptions/{name}", { params });
          await navigate({ to: "/subscriptions" });
          await act(async () => undefined, `${name} is deleted`);
        }}
      />
    </Page>
  );
}

/** Where it stands in each queue. */
function Positions({ cursors }: { cursors: readonly Cursor[] }) {
  return (
    <Card title="Positions" hint="per queue" flush={cursors.length > 0}>
      <Table
        label="Positions"
        columns={CURSORS}
        rows={cursors}
        rowKey={(row) => row.queue}
        empty={
          <p className="text-muted">
            No engine serves it yet. It gets a position in each queue as soon as an engine serves
            it.
          </p>
        }
      />
    </Card>
  );
}
