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
import "@xyflow/react/dist/style.css";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Network } from "lucide-react";
import { useMemo } from "react";
import { useLive } from "@/live/store";
import type { Flow } from "@/live/types";
import { SearchInput } from "@/ui/field";
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

/** What touches a node whose name matches, and what those touch, along the stream. */
function around(flow: Flow, query: string): { nodes: string[]; edges: string[] } {
  const nodes = Object.values(flow.nodes);
  const edges = Object.values(flow.edges);
  if (!query) return { nodes: nodes.map((one) => one.id), edges: edges.map((one) => one.id) };
  const kept = new Set(nodes.filter((one) => one.label.includes(query)).map((one) => one.id));
  for (const forward of [true, false]) {
    const reached = [...kept];
    for (let at = reached.pop(); at !== undefined; at = reached.pop()) {
      for (const edge of edges) {
        const [from, to] = forward ? [edge.source, edge.target] : [edge.target, edge.source];
        if (from === at && !kept.has(to)) {
          kept.add(to);
          reached.push(to);
        }
      }
    }
  }
  const inside = edges.filter((one) => kept.has(one.source) && kept.has(one.target));
  return { nodes: [...kept], edges: inside.map((one) => one.id) };
}

export function FlowPage() {
  const { q = "", view = "graph" } = route.useSearch();
  const navigate = useNavigate();
  const flow = useLive("flow");
  const set = (search: { q?: string | undefined; view?: "graph" | "table" | undefined }) =>
    navigate({ to: "/flow", search: { q: q || undefined, view, ...search }, replace: true });
  return (
    <Page
      fill
      title="Flow"
      lead="Who publishes what, and who reads it: rates, loss, throttle and pressure on the way."
      actions={
        <>
          <SearchInput
            aria-label="Show what is connected with"
            placeholder="Topic, node, client"
            value={q}
            onChange={(event) => set({ q: event.target.value || undefined })}
            className="w-56"
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
      ) : Object.keys(flow.nodes).length === 0 ? (
        <Empty
          icon={Network}
          title="Nothing flows yet"
          commands={["tidecast sub 'md.>'", "tidecast pub md.eu --message 'hello'"]}
        >
          As soon as somebody publishes or subscribes, the way of the messages shows up here.
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
              <Graph flow={flow} query={q} />
            </ReactFlowProvider>
          ) : (
            <FlowTable flow={flow} edges={around(flow, q).edges} />
          )}
        </div>
      )}
    </Page>
  );
}

function Graph({ flow, query }: { flow: Flow; query: string }) {
  const shown = around(flow, query);
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
        fitViewOptions={{ padding: 0.12, maxZoom: 1.1 }}
        minZoom={0.15}
        maxZoom={1.6}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        proOptions={{ hideAttribution: true }}
      >
        <Background gap={22} size={1} color="var(--line)" />
        <Controls showInteractive={false} />
      </ReactFlow>
    </div>
  );
}
