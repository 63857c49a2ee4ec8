// Resources by kind: read with their ETag, planned, created, changed. A change names the ETag that the
// service gave with the resource, so that it is refused when somebody else was faster.
import { bodyOf, http } from "./client";
import type { Plan } from "./queries";

/** Path and name of each kind that has an editor. */
export const KINDS = {
  topic: { path: "/api/v1/topics", word: "topic" },
  subscription: { path: "/api/v1/subscriptions", word: "subscription" },
  rate_limit: { path: "/api/v1/rate-limits", word: "policy" },
  alert_rule: { path: "/api/v1/alert-rules", word: "rule" },
  silence: { path: "/api/v1/silences", word: "silence" },
  mirror: { path: "/api/v1/mirrors", word: "mirror" },
  pipeline: { path: "/api/v1/pipelines", word: "pipeline" },
} as const;

export type Kind = keyof typeof KINDS;

/** What is written of a resource. */
export interface ResourceDocument {
  metadata: Record<string, unknown>;
  spec: Record<string, unknown>;
}

/** A resource as the service has it, and the ETag of that. */
export interface Stored {
  document: ResourceDocument;
  etag: string;
}

/** What is sent: a whole new resource, or what changes of one. */
export type Write =
  | { method: "PUT"; body: ResourceDocument }
  | { method: "PATCH"; body: Partial<ResourceDocument>; ifMatch?: string | undefined };

export const pathOf = (kind: Kind, name: string) =>
  `${KINDS[kind].path}/${encodeURIComponent(name || "NAME")}`;

// All kinds have the same routes: the document's types are those of one.
const routeOf = (kind: Kind) => `${KINDS[kind].path}/{name}` as "/api/v1/topics/{name}";

export async function readResource(kind: Kind, name: string): Promise<Stored> {
  const { data, response } = await http.GET(routeOf(kind), { params: { path: { name } } });
  return {
    document: data as unknown as ResourceDocument,
    etag: response.headers.get("ETag") ?? "",
  };
}

/** Does a write, or says what it would do. */
async function send(kind: Kind, name: string, write: Write, dry_run: boolean): Promise<unknown> {
  const params = { path: { name }, query: { dry_run } };
  if (write.method === "PATCH") {
    const header = write.ifMatch && !dry_run ? { "if-match": write.ifMatch } : {};
    return http
      .PATCH(routeOf(kind), { params: { ...params, header }, body: write.body as never })
      .then(bodyOf);
  }
  const header = dry_run ? {} : { "if-none-match": "*" };
  return http
    .PUT(routeOf(kind), { params: { ...params, header }, body: write.body as never })
    .then(bodyOf);
}

export const planWrite = (kind: Kind, name: string, write: Write) =>
  send(kind, name, write, true) as Promise<Plan>;

export const doWrite = (kind: Kind, name: string, write: Write) => send(kind, name, write, false);

export const deleteResource = (kind: Kind, name: string) =>
  http.DELETE(routeOf(kind), { params: { path: { name } } });
