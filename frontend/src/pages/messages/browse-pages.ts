// Pages of a browse. A token belongs to one queue, so that a topic of several is read queue by queue,
// each from where its last page ended.
import { bodyOf, http } from "@/api/client";
import type { MessageView } from "@/api/queries";

export const PAGE_MESSAGES = 100;

export interface Start {
  start: "earliest" | "latest" | "token" | "time";
  queue?: number;
  token?: string;
  time_ns?: string;
  node?: string;
  q?: string;
}

/** Where a queue continues; without a token it begins. */
export interface Cursor {
  queue: number | undefined;
  token: string | undefined;
}

export interface BrowsePage {
  messages: readonly MessageView[];
  scanned: number;
  withheld: boolean;
  next: readonly Cursor[];
}

/** The queues that a browse begins with: all of them, unless it is of one or of the newest messages. */
export function firstCursors(start: Start, queues: number): readonly Cursor[] {
  const apart = queues > 1 && start.queue === undefined && /^(earliest|time)$/.test(start.start);
  return apart
    ? Array.from({ length: queues }, (_, queue) => ({ queue, token: undefined }))
    : [{ queue: start.queue, token: undefined }];
}

const later = (a: MessageView, b: MessageView): number => {
  const gap = BigInt(a.at_ns ?? 0) - BigInt(b.at_ns ?? 0);
  if (gap !== 0n) return gap > 0n ? 1 : -1;
  return (a.queue ?? 0) - (b.queue ?? 0) || Number(BigInt(a.token ?? 0) - BigInt(b.token ?? 0));
};

/** The next messages of each queue, by time. */
export async function browsePage(
  topic: string,
  start: Start,
  cursors: readonly Cursor[],
): Promise<BrowsePage> {
  const limit = Math.max(1, Math.ceil(PAGE_MESSAGES / cursors.length));
  const answers = await Promise.all(
    cursors.map(({ queue, token }) =>
      http
        .GET("/api/v1/topics/{name}/messages", {
          params: {
            path: { name: topic },
            query: {
              ...start,
              limit,
              ...(queue === undefined ? {} : { queue }),
              ...(token ? { start: "token" as const, token } : {}),
            },
          },
        })
        .then(bodyOf),
    ),
  );
  const messages = answers.flatMap((answer) => answer.messages);
  return {
    messages: cursors.length > 1 ? messages.sort(later) : messages,
    scanned: answers.reduce((sum, answer) => sum + answer.scanned, 0),
    withheld: answers.some((answer) => answer.withheld),
    next: answers.flatMap(({ complete, next_token }, at) =>
      complete || !next_token ? [] : [{ queue: cursors[at]?.queue, token: next_token }],
    ),
  };
}
