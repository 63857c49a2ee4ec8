import { useQuery } from "@tanstack/react-query";
import { nodesQuery } from "@/api/queries";

/** An engine knows another one by its number until that one has published: names come from here. */
export function useNodeNames(): (node: string) => string {
  const items = useQuery(nodesQuery).data?.items ?? [];
  const names = new Map(items.map((one) => [String(one.status.node_id), one.metadata.name]));
  return (node) => names.get(node) ?? node;
}
