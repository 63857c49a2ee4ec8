import {
  Background,
  Controls,
  type Edge,
  type EdgeTypes,
  type Node,
  type NodeTypes,
  ReactFlow,
  ReactFlowProvider,
} from "@xyflow/react";
import { useTidecast } from "@/app/commands";
import "@xyflow/react/dist/style.css";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Network } from "lucide-react";
import { useMemo } from "react";
import { SMALL, useMedia } from "@/lib/media";
import { useLive } from "@/live/store";
import type { Flow } from "@/live/types";
import { FilterInput } from "@/ui/field";
import { Page } from "@/ui/page";
import { Segments } from "@/ui/segments";
import { Empty, Loading } from "@/ui/states";
import { type FlowEdgeData, FlowEdgeView } from "./edge";
import { FlowTable } from "./flow-table";
import { layout } from "./layout";
import { type FlowNodeData, FlowNodeView } from "./node";

const NODE_TYPES: NodeTypes = { box: FlowNodeView };
const EDGE_TYPES: EdgeTypes = { pipe: FlowEdgeView };
const route = getRouteApi("/app/flow");

type One = Flow["nodes"][string];
type Way = Flow["edges"][string];

interface Shown {
  nodes: string[];
  edges: string[];
}

/** The platform's own topics: telemetry. They are shown on request. */
const OWN = "tidecast.";

/**
 * What touches a node whose name matches, and what those touch, along the stream; without a query
 * all but the platform's own topics.
 */
function around(flow: Flow, query: string): Shown {
  const nodes = Object.values(flow.nodes);
  const edges = Object.values(flow.edges);
  const starts = query
    ? nodes.filter((one) => one.label.includes(query))
    : nodes.filter((one) => one.kind === "topic" && !one.label.startsWith(OWN));
  // Each way from the start alone: back from what is reached, an agent would bring all it serves.
  const kept = new Set([...reached(starts, edges, true), ...reached(starts, edges, false)]);
  const inside = edges.filter((one) => kept.has(one.source) && kept.has(one.target));
  return { nodes: [...kept], edges: inside.map((one) => one.id) };
}

function reached(starts: readonly One[], edges: readonly Way[], forward: boolean): Set<string> {
  const seen = new Set(starts.map((one) => one.id));
  const next = [...seen];
  for (let at = next.pop(); at !== undefined; at = next.pop()) {
    for (const edge of edges) {
      const [from, to] = forward ? [edge.source, edge.target] : [edge.target, edge.source];
      if (from === at && !seen.has(to)) {
        seen.add(to);
        next.push(to);
      }
    }
  }
  return seen;
}

export function FlowPage() {
  const tidecast = useTidecast();
  const { q = "", view: wanted } = route.useSearch();
  const navigate = useNavigate();
  const flow = useLive("flow");
  const small = useMedia(SMALL);
  // A graph that is narrower than four of its boxes shows nothing that could be read.
  const view = wanted ?? (small ? "table" : "graph");
  const shown = flow ? around(flow, q) : { nodes: [], edges: [] };
  const set = (search: { q?: string | undefined; view?: "graph" | "table" | undefined }) =>
    navigate({
      to: "/flow",
      search: { q: q || undefined, view: wanted, ...search },
      replace: true,
    });
  return (
    <Page
      fill
      title="Flow"
      lead="Publishers, topics and subscribers: rates, loss, throttling and pressure on each connection."
      actions={
        <>
          <FilterInput
            aria-label="Show connections of"
            placeholder="Topic, node, client"
            value={q}
            onFilter={(q) => set({ q })}
            className="w-56 max-sm:w-full"
          />
          <Segments
            label="View"
            value={view}
            onChange={(next) => set({ view: next })}
            options={[
              { value: "graph", label: "Graph" },
              { value: "table", label: "Table" },
            ]}
          />
        </>
      }
    >
      {!flow ? (
        <Loading />
      ) : shown.nodes.length === 0 && !q ? (
        <Empty
          icon={Network}
          title="No traffic yet"
          commands={[tidecast("sub", "md.>"), tidecast("pub", "md.eu", "--message", "hello")]}
        >
          Publishers, topics and subscribers appear here as soon as they connect.
        </Empty>
      ) : (
        <div className="flex h-full min-h-0 flex-col gap-2">
          {flow.truncated && (
            <p className="text-warn text-xs">
              Only the busiest part is shown. Search for a topic to see its surroundings.
            </p>
          )}
          {view === "graph" ? (
            <ReactFlowProvider>
              <Graph flow={flow} shown={shown} />
              <Legend />
            </ReactFlowProvider>
          ) : (
            <FlowTable flow={flow} edges={shown.edges} />
          )}
        </div>
      )}
    </Page>
  );
}

function Graph({ flow, shown }: { flow: Flow; shown: Shown }) {
  const shape = `${shown.nodes.toSorted().join("\n")}\n\n${shown.edges.toSorted().join("\n")}`;
  // biome-ignore lint/correctness/useExhaustiveDependencies: places change with the shape alone
  const places = useMemo(
    () =>
      layout(
        shown.nodes.toSorted(),
        shown.edges.toSorted().flatMap((id) => flow.edges[id] ?? []),
      ),
    [shape],
  );
  const nodes: Node<FlowNodeData>[] = shown.nodes.flatMap((id) => {
    const data = flow.nodes[id];
    const position = places.get(id);
    return data && position ? [{ id, type: "box", position, data: { ...data } }] : [];
  });
  const edges: Edge<FlowEdgeData>[] = shown.edges.flatMap((id) => {
    const data = flow.edges[id];
    return data
      ? [{ id, type: "pipe", source: data.source, target: data.target, data: { ...data } }]
      : [];
  });
  return (
    <div
      className="min-h-0 flex-1 overflow-hidden rounded-lg border bg-panel"
      data-testid="flow-graph"
    >
      <ReactFlow
        key={shape}
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        fitView
        fitViewOptions={{ padding: 0.06, maxZoom: 1.1 }}
        minZoom={0.15}
        maxZoom={1.6}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        proOptions={{ hideAttribution: true }}
      >
        <Background gap={22} size={1} color="var(--line)" />
        <Controls showInteractive={false} position="top-right" />
      </ReactFlow>
    </div>
  );
}

const MEANINGS = [
  ["bg-accent", "active"],
  ["bg-warn", "throttled, or > 70 % full"],
  ["bg-bad", "loss, or > 90 % full"],
  ["bg-line-strong", "idle"],
] as const;

/** What the colours and signs of the graph mean. */
function Legend() {
  return (
    <ul
      aria-label="Legend"
      className="flex flex-wrap justify-center gap-x-4 gap-y-1 text-2xs text-muted"
    >
      {MEANINGS.map(([tone, means]) => (
        <li key={means} className="flex items-center gap-1.5">
          <span aria-hidden className={`h-0.5 w-4 rounded ${tone}`} />
          {means}
        </li>
      ))}
      <li>↻ resent</li>
      <li>−5 lag of 5 packets</li>
    </ul>
  );
}
