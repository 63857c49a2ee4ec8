// The one way to the service. Types come from its OpenAPI document (`npm run api`).
import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./generated/schema";

export type Schemas = components["schemas"];
type Problem = Schemas["Problem"];

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

/** `/spec/ack_wait_s` -> `ack wait s`: a field as people call it. */
const fieldOf = (pointer: string): string =>
  pointer
    .replace(/^\/(spec|metadata)\//, "")
    .replace(/^\//, "")
    .replaceAll("_", " ");

function messageOf(status: number, problem: Partial<Problem>): string {
  const head = problem.detail || problem.title || `The service answered ${status}.`;
  const more = (problem.errors ?? [])
    .filter((one) => !head.includes(one.detail))
    .map(
      (one) =>
        `${fieldOf(one.pointer)}: ${one.detail}${one.allowed ? ` (allowed: ${one.allowed})` : ""}`,
    );
  // A mere count of the problems says nothing that they do not say themselves.
  const parts = more.length > 0 && /^\d+ problem\(s\)$/.test(head) ? more : [head, ...more];
  return parts.join(" ");
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

/** An answer to a question takes no longer; a write may. */
const ANSWER_MS = 15_000;

function ask(request: Request): Promise<Response> {
  if (WRITES.has(request.method)) return globalThis.fetch(request);
  const signal = AbortSignal.any([request.signal, AbortSignal.timeout(ANSWER_MS)]);
  return globalThis.fetch(new Request(request, { signal }));
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
  onError({ error }) {
    if (error instanceof DOMException && error.name === "AbortError") return undefined;
    const late = error instanceof DOMException && error.name === "TimeoutError";
    return new ApiError(0, {
      code: late ? "no_answer" : "no_service",
      detail: late
        ? `The control service did not answer within ${ANSWER_MS / 1000} s.`
        : "The control service does not answer. Is it running?",
    });
  },
};

export const http = createClient<paths>({
  baseUrl: globalThis.location?.origin ?? "http://localhost",
  credentials: "same-origin",
  fetch: ask,
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
