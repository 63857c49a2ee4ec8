// The one way to the service. Types come from its OpenAPI document (`npm run api`).
import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./generated/schema";

export type Schemas = components["schemas"];
export type Problem = Schemas["Problem"];

/** What the service refused, and why: RFC 9457 as an exception. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Partial<Problem>,
  ) {
    super(messageOf(status, problem));
  }

  get code(): string {
    return this.problem.code ?? `http_${this.status}`;
  }

  /** What is wrong with one field of the body, by its JSON pointer. */
  at(pointer: string): string | undefined {
    return this.problem.errors?.find((one) => one.pointer === pointer)?.detail;
  }
}

function messageOf(status: number, problem: Partial<Problem>): string {
  const head = problem.detail || problem.title || `The service answered ${status}.`;
  const more = (problem.errors ?? [])
    .filter((one) => !head.includes(one.detail))
    .map(
      (one) => `${one.pointer}: ${one.detail}${one.allowed ? ` (allowed: ${one.allowed})` : ""}`,
    );
  return [head, ...more].join(" ");
}

let csrfToken: string | null = null;

/** Every write of a cookie session carries this; the service gives it with the identity. */
export function setCsrfToken(token: string | null | undefined): void {
  csrfToken = token ?? null;
}

const WRITES = new Set(["POST", "PUT", "PATCH", "DELETE"]);
const listeners = new Set<() => void>();

/** Called when the service says that the session is over. */
export function onSignedOut(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const middleware: Middleware = {
  onRequest({ request }) {
    if (csrfToken && WRITES.has(request.method)) request.headers.set("X-CSRF-Token", csrfToken);
    return request;
  },
  async onResponse({ request, response }) {
    if (response.ok || response.status === 304) return response;
    if (response.status === 401 && !request.url.includes("/auth/")) {
      for (const listener of listeners) listener();
    }
    const problem = await response
      .clone()
      .json()
      .catch(() => ({ detail: response.statusText }));
    throw new ApiError(response.status, problem as Partial<Problem>);
  },
  onError() {
    return new ApiError(0, { detail: "The control service does not answer. Is it running?" });
  },
};

export const http = createClient<paths>({
  baseUrl: globalThis.location?.origin ?? "http://localhost",
  credentials: "same-origin",
  fetch: (request) => globalThis.fetch(request),
});
http.use(middleware);

/** The body of an answer that was not refused: refusals have become exceptions before. */
export function bodyOf<T>(answer: { data?: T | undefined }): T {
  return answer.data as T;
}

/** A body that leaves out what has a default: the document's types want it all. */
export type Wanted<T> = T extends readonly unknown[]
  ? T
  : T extends object
    ? { [K in keyof T]?: Wanted<T[K]> }
    : T;
export const wanted = <T>(body: Wanted<T>): T => body as T;
