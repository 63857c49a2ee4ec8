import { useQuery } from "@tanstack/react-query";
import { Plus, Server, ShieldBan, ShieldCheck } from "lucide-react";
import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import { type Node, nodesQuery, type Transport, transportsQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useMay } from "@/app/session";
import { HistoryCard } from "@/charts/history-card";
import { Sparkline } from "@/charts/sparkline";
import { bytes, duration, exact, rate } from "@/lib/format";
import { ago, dateTime, useZone } from "@/lib/time";
import { useLive } from "@/live/store";
import type { AgentLive, NodeLive } from "@/live/types";
import { RecorderCard } from "@/pages/reliability/recorder";
import { Badge, StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card, Facts } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Page } from "@/ui/page";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { Tip } from "@/ui/tip";
import { Enrol } from "./enrol";

export function NodesPage() {
  const nodes = useQuery(nodesQuery);
  const transports = useQuery(transportsQuery).data?.items ?? [];
  const live = useLive("nodes");
  const may = useMay();
  const [open, setOpen] = useState<string | null>(null);
  const [enrolling, setEnrolling] = useState(false);
  const items = nodes.data?.items ?? [];
  const chosen = items.find((one) => one.metadata.name === open);
  return (
    <Page
      title="Nodes"
      lead="Engines, their transports, and whether they use the newest settings."
      actions={
        may("enrolments:write") && (
          <Button look="primary" icon={Plus} onClick={() => setEnrolling(true)}>
            Add a node
          </Button>
        )
      }
    >
      {nodes.isError && <Failed error={nodes.error} retry={nodes.refetch} />}
      {nodes.isPending && <Loading />}
      {nodes.data && items.length === 0 && (
        <Empty
          icon={Server}
          title="No engine has registered"
          commands={["tidecast up", `tidecast engine --control ${location.origin}`]}
        >
          Engines register themselves, keep their last topology, and continue when this service is
          down.
        </Empty>
      )}
      <div className="grid grid-cols-1 gap-3 lg:grid-cols-2 2xl:grid-cols-3">
        {items.map((node) => (
          <NodeCard
            key={node.metadata.name}
            node={node as Node}
            live={live?.nodes[node.metadata.name]}
            agents={Object.values(live?.agents ?? {}).filter(
              (one) => one.node === node.metadata.name,
            )}
            onOpen={() => setOpen(node.metadata.name)}
          />
        ))}
      </div>
      <Card title="Transports" hint="how packets move" flush className="mt-3">
        <Table
          label="Transports"
          columns={TRANSPORTS}
          rows={transports as Transport[]}
          rowKey={(row) => row.metadata.name}
          empty={<p className="px-3.5 pb-4 text-muted">No transport yet.</p>}
        />
      </Card>
      {chosen && <NodeDialog node={chosen as Node} onClose={() => setOpen(null)} />}
      {enrolling && <Enrol onClose={() => setEnrolling(false)} />}
    </Page>
  );
}

/** A cycle that took longer is shown as a warning. */
const LONG_CYCLE_MS = 50;

const STATES = { up: "good", down: "bad", never: "plain" } as const;

function NodeCard({
  node,
  live,
  agents,
  onOpen,
}: {
  node: Node;
  live: NodeLive | undefined;
  agents: AgentLive[];
  onOpen: () => void;
}) {
  const name = node.metadata.name;
  const state = live?.state ?? node.status.state ?? "never";
  const restart = node.status.restart_needed ?? [];
  return (
    <Card
      title={name}
      hint={node.status.host}
      actions={
        <>
          {(live?.drift ?? node.status.drift) && <StateBadge state="warn">out of sync</StateBadge>}
          {node.spec.quarantined && (
            <Badge tone="bad" icon={ShieldBan}>
              quarantined
            </Badge>
          )}
          <StateBadge state={STATES[state]}>{state}</StateBadge>
          <Button size="sm" look="quiet" onClick={onOpen}>
            Details
          </Button>
        </>
      }
    >
      <div className="grid grid-cols-3 gap-x-4 gap-y-2">
        <Figure label="Sent" value={rate(live?.rates?.packets_out, " pkt/s")} />
        <Figure label="Received" value={rate(live?.rates?.packets_in, " pkt/s")} />
        <Figure
          label="Longest cycle"
          value={live ? duration(live.duty_cycle_ms_max / 1000) : "–"}
        />
        <Figure label="Publications" value={exact(live?.publications)} />
        <Figure label="Images" value={exact(live?.images)} />
        <Figure label="Clients" value={exact(live?.clients)} />
      </div>
      <div className="mt-2.5 flex items-end justify-between gap-3">
        <span className="text-2xs text-faint">
          Topology {node.status.topology_version} of {node.status.wanted_version}
          {live?.telemetry_age_s != null && `, figures ${duration(live.telemetry_age_s)} old`}
        </span>
        <Sparkline
          channel="nodes"
          name={`nodes/${name}/packets_out`}
          label={`${name}, packets sent`}
          width={150}
          height={28}
        />
      </div>
      {agents.length > 0 && (
        <div className="mt-2 flex flex-wrap items-center gap-1">
          <span className="mr-1 text-2xs text-faint">Cycles of its agents</span>
          {agents.map((one) => (
            <Tip key={one.id} text={`Longest cycle: ${duration(one.duty_cycle_ms_max / 1000)}`}>
              <button type="button" className="cursor-help rounded">
                <Badge tone={one.duty_cycle_ms_max > LONG_CYCLE_MS ? "warn" : "plain"}>
                  {one.name} {rate(one.duty_cycles_per_s)}
                </Badge>
              </button>
            </Tip>
          ))}
        </div>
      )}
      {restart.length > 0 && (
        <p className="mt-2 text-warn text-xs">Needs a restart for: {restart.join(", ")}</p>
      )}
    </Card>
  );
}

function Figure({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <p className="text-faint text-xs">{label}</p>
      <p className="num font-semibold text-base">{value}</p>
    </div>
  );
}

function NodeDialog({ node, onClose }: { node: Node; onClose: () => void }) {
  const zone = useZone();
  const may = useMay()("nodes:write");
  const { busy, act } = useAct();
  const { status, spec, metadata } = node;
  return (
    <Dialog
      open
      onOpenChange={(next) => !next && onClose()}
      shape="sheet"
      title={metadata.name}
      lead="An engine as the service sees it"
      footer={
        may && (
          <>
            <span className="mr-auto">
              <CopyAs
                action={{
                  method: "PATCH",
                  path: `/api/v1/nodes/${encodeURIComponent(metadata.name)}`,
                  body: { spec: { quarantined: !spec.quarantined } },
                }}
              />
            </span>
            <Button
              look={spec.quarantined ? "plain" : "danger"}
              icon={spec.quarantined ? ShieldCheck : ShieldBan}
              busy={busy}
              onClick={() =>
                act(
                  () =>
                    http.PATCH("/api/v1/nodes/{name}", {
                      params: { path: { name: metadata.name } },
                      body: wanted<Schemas["MergePatch"]>({
                        spec: { quarantined: !spec.quarantined },
                      }),
                    }),
                  spec.quarantined ? "Out of quarantine" : "In quarantine",
                )
              }
            >
              {spec.quarantined ? "End the quarantine" : "Quarantine: others refuse its packets"}
            </Button>
          </>
        )
      }
    >
      <div className="flex flex-col gap-4 pb-4">
        <Facts
          items={[
            ["State", status.state],
            ["Host", status.host],
            ["Address", status.address],
            ["Version", status.version],
            ["Node id", exact(status.node_id)],
            ["Incarnation", status.incarnation ?? "–"],
            [
              "Connected",
              `${dateTime(status.connected_at, zone)} (${ago(status.connected_at, Date.now())})`,
            ],
            ["Last heard", ago(status.seen_at, Date.now())],
            ["Topology", `${status.topology_version} of ${status.wanted_version}`],
            ["Leased ownership", (status.keeps ?? []).join(", ") || "no queues"],
          ]}
        />
        {Object.entries(status.errors ?? {}).map(([what, error]) => (
          <Failed key={what} error={`${what}: ${error}`} />
        ))}
        <HistoryCard scope="node" name={metadata.name} />
        <RecorderCard node={metadata.name} />
      </div>
    </Dialog>
  );
}

const TRANSPORTS: Column<Transport>[] = [
  { id: "name", head: "Name", cell: (row) => <b className="font-medium">{row.metadata.name}</b> },
  { id: "kind", wide: true, head: "Kind", cell: (row) => <Badge>{row.spec.kind}</Badge> },
  {
    id: "where",
    head: "Where",
    cell: (row) => (
      <span className="font-mono text-xs">
        {row.spec.kind === "udp-multicast"
          ? `${row.spec.group}:${row.spec.port} on ${row.spec.interface}`
          : row.spec.kind === "udp-unicast"
            ? (row.spec.peers ?? []).join(", ") || "no peers"
            : "shared memory"}
      </span>
    ),
  },
  {
    id: "packet",
    wide: true,
    head: "Packet",
    right: true,
    cell: (row) => `${exact(row.spec.packet_bytes)} B`,
  },
  {
    id: "buffer",
    wide: true,
    head: "Socket buffer",
    right: true,
    cell: (row) => bytes(row.spec.socket_buffer_bytes),
  },
  { id: "idle", wide: true, head: "Idle", cell: (row) => row.spec.idle },
  { id: "lanes", wide: true, head: "Lanes", right: true, cell: (row) => exact(row.spec.lanes) },
  { id: "topics", head: "Topics", right: true, cell: (row) => exact(row.status.topics) },
  {
    id: "faults",
    head: "Faults",
    cell: (row) => (row.spec.allow_faults ? <Badge tone="warn">allowed</Badge> : "no"),
  },
];
