// Whether the service can do what the page asks of it. Figures may be live while the database is away:
// then lists and changes fail, and the page says so instead of showing grey bars.
import { useQuery } from "@tanstack/react-query";
import { queries } from "./query-client";

const EVERY_MS = 5_000;
const ANSWER_MS = 3_000;

interface Health {
  database: "ok" | "away";
  /** Other parts that do not work, and why. */
  impaired: readonly string[];
}

const WELL: Health = { database: "ok", impaired: [] };

/** What an answer of `/health/ready` means; a service that is down is the badge's to report. */
export function healthOf(status: number, checks: Readonly<Record<string, string>>): Health {
  if (status === 200) return WELL;
  const failed = Object.entries(checks).filter(([, text]) => text !== "ok");
  const isDatabase = (name: string) => /postgres|database/.test(name);
  return {
    database: failed.some(([name]) => isDatabase(name)) ? "away" : "ok",
    impaired: failed
      .filter(([name]) => !isDatabase(name))
      .map(([name, text]) => `${name}: ${text}`),
  };
}

async function askHealth(): Promise<Health> {
  try {
    const answer = await fetch("/health/ready", { signal: AbortSignal.timeout(ANSWER_MS) });
    const body = (await answer.json()) as { checks?: Record<string, string> };
    return healthOf(answer.status, body.checks ?? {});
  } catch (error) {
    // The service is there, and waits for its database.
    const late = error instanceof DOMException && error.name === "TimeoutError";
    return late ? { database: "away", impaired: [] } : WELL;
  }
}

export function useHealth(): Health {
  const { data } = useQuery(
    { queryKey: ["health"], queryFn: askHealth, refetchInterval: EVERY_MS, staleTime: EVERY_MS },
    queries,
  );
  return data ?? WELL;
}
