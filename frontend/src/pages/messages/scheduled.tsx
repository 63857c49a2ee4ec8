import { useInfiniteQuery } from "@tanstack/react-query";
import { CalendarClock } from "lucide-react";
import { useMemo, useState } from "react";
import { bodyOf, http, type Schemas } from "@/api/client";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { exact, plural } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { Facts } from "@/ui/card";
import { Confirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { More } from "@/ui/more";
import { Empty, Failed, Loading } from "@/ui/states";
import type { Column } from "@/ui/table";
import { VirtualTable } from "@/ui/virtual-table";
import { keyOfMessage, placeOf, shownPayload } from "./message-view";

type Scheduled = Schemas["ScheduledMessage"];

const LIMIT = 200;
const REFRESH_MS = 5_000;

/** What waits for its delivery time, soonest first; a row asks whether to cancel it. */
export function ScheduledMessages({ topic }: { topic: string }) {
  const zone = useZone();
  const may = useMay();
  const tidecast = useTidecast();
  const [open, setOpen] = useState<Scheduled | null>(null);
  const path = `/api/v1/topics/${encodeURIComponent(topic)}/scheduled`;
  const found = useInfiniteQuery({
    queryKey: ["messages", "scheduled", topic],
    queryFn: ({ pageParam }) =>
      http
        .GET("/api/v1/topics/{name}/scheduled", {
          params: {
            path: { name: topic },
            query: { limit: LIMIT, ...(pageParam ? { cursor: pageParam } : {}) },
          },
        })
        .then(bodyOf),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: REFRESH_MS,
    retry: false,
  });
  const columns = useMemo(
    (): Column<Scheduled>[] => [
      {
        id: "due",
        head: "Delivery time",
        width: "12rem",
        cell: (row) => (
          <span className="num font-mono text-xs">{dateTime(row.deliver_at, zone)}</span>
        ),
      },
      {
        id: "place",
        head: "Queue:offset",
        width: "8rem",
        right: true,
        cell: (row) => <span className="font-mono text-xs">{placeOf(row)}</span>,
      },
      {
        id: "key",
        wide: true,
        head: "Key",
        width: "9rem",
        cell: (row) => <span className="font-mono text-xs">{row.key ?? ""}</span>,
      },
      {
        id: "payload",
        wide: true,
        head: "Payload",
        width: "minmax(9rem,1fr)",
        cell: (row) => (
          <span className="font-mono text-xs">
            {shownPayload(row.payload, "auto")?.summary ?? "withheld"}
          </span>
        ),
      },
      {
        id: "subscriptions",
        wide: true,
        head: "Subscriptions",
        width: "12rem",
        cell: (row) => row.subscriptions.join(", "),
      },
    ],
    [zone],
  );
  if (found.error) return <Failed error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Loading />;
  const messages = found.data.pages.flatMap((page) => page.messages);
  const missing = found.data.pages.flatMap((page) => page.missing ?? []);
  return (
    <div className="flex h-full min-h-0 flex-col gap-2">
      <div className="flex items-center gap-2 text-muted text-sm">
        <span role="status">
          {!found.hasNextPage
            ? `${plural(messages.length, "message")} scheduled`
            : `The first ${exact(messages.length)} scheduled messages`}
        </span>
        <More list={found} />
        <span className="ml-auto">
          <CopyAs action={{ method: "GET", path, cli: tidecast("queue", "scheduled", topic) }} />
        </span>
      </div>
      {missing.map((one) => (
        <p key={one.node} role="alert" className="text-sm text-warn">
          {one.node}: {one.reason}
        </p>
      ))}
      <VirtualTable
        label="Scheduled messages"
        columns={columns}
        rows={messages}
        rowKey={keyOfMessage}
        onRow={setOpen}
        empty={
          <Empty icon={CalendarClock} title="No scheduled messages">
            A message with a delivery time stays here until subscriptions get it.
          </Empty>
        }
      />
      {open &&
        (may("operations:write") ? (
          <CancelDelivery topic={topic} message={open} onClose={() => setOpen(null)} />
        ) : (
          <Dialog
            open
            onOpenChange={(next) => !next && setOpen(null)}
            title={`Message ${placeOf(open)}`}
          >
            <About message={open} />
          </Dialog>
        ))}
    </div>
  );
}

function About({ message }: { message: Scheduled }) {
  const zone = useZone();
  return (
    <Facts
      items={[
        ["Delivery time", dateTime(message.deliver_at, zone)],
        ["Key", message.key ?? ""],
        ["Subscriptions", message.subscriptions.join(", ")],
      ]}
    />
  );
}

function CancelDelivery({
  topic,
  message,
  onClose,
}: {
  topic: string;
  message: Scheduled;
  onClose: () => void;
}) {
  const { act } = useAct();
  const tidecast = useTidecast();
  const place = { queue: message.queue ?? 0, token: message.token ?? "0" };
  const body = { messages: [place], everything: false, subscription: "" };
  return (
    <Confirm
      open
      onOpenChange={(next) => !next && onClose()}
      title={`Cancel the delivery of ${placeOf(message)}?`}
      lead="No subscription gets this message at its time. It stays in the log."
      verb="Cancel the delivery"
      action={{
        method: "POST",
        path: `/api/v1/topics/${encodeURIComponent(topic)}/scheduled/cancel`,
        body,
        cli: tidecast("queue", "cancel", topic, "--record", `${place.queue}:${place.token}`),
      }}
      run={async () => {
        const answer = await http
          .POST("/api/v1/topics/{name}/scheduled/cancel", {
            params: { path: { name: topic } },
            body,
          })
          .then(bodyOf);
        await act(async () => undefined, sayCancelled(answer));
      }}
    >
      <About message={message} />
    </Confirm>
  );
}

interface Row {
  cancelled: string;
  too_late: string;
}

/** In how many subscriptions it was cancelled, and in how many its time had come. */
export function sayCancelled(operation: Schemas["Operation"]): string {
  const rows = (operation.results ?? []).flatMap(
    (one) => (one.value?.subscriptions as Row[] | undefined) ?? [],
  );
  const sum = (field: keyof Row) => rows.reduce((total, row) => total + Number(row[field]), 0);
  const late = sum("too_late");
  const done = `Cancelled for ${plural(sum("cancelled"), "subscription")}`;
  return late ? `${done}; too late for ${exact(late)}` : done;
}
