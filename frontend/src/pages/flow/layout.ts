import dagre from "@dagrejs/dagre";

export const NODE_WIDTH = 196;
export const NODE_HEIGHT = 58;

interface Edge {
  source: string;
  target: string;
}

type Places = ReadonlyMap<string, { x: number; y: number }>;

/** Places from left to right. The same graph gets the same places: nothing jumps between frames. */
export function layout(ids: readonly string[], edges: readonly Edge[]): Places {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 104, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of ids) graph.setNode(id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const edge of edges) {
    if (graph.hasNode(edge.source) && graph.hasNode(edge.target))
      graph.setEdge(edge.source, edge.target);
  }
  dagre.layout(graph);
  return new Map(
    ids.map((id) => {
      const { x, y } = graph.node(id) as { x: number; y: number };
      return [id, { x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 }];
    }),
  );
}
