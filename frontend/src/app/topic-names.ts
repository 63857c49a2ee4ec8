import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { bodyOf, http } from "@/api/client";

const SUGGESTED_MAX = 20;

/** Names of topics that contain the text, by the service's search. */
export function useTopicNames(text: string, enabled = true): readonly string[] {
  const { data } = useQuery({
    queryKey: ["topics", "names", text],
    queryFn: () =>
      http
        .GET("/api/v1/topics", {
          params: { query: { limit: SUGGESTED_MAX, ...(text ? { q: text } : {}) } },
        })
        .then(bodyOf)
        .then((page) => page.items.map((topic) => topic.metadata.name)),
    enabled,
    staleTime: 5_000,
    placeholderData: keepPreviousData,
  });
  return data ?? [];
}
