// @vitest-environment jsdom
// Each page on the fixture platform. Whether all can use them is asked in a browser: tests/e2e.
import { QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, createRouter, RouterProvider } from "@tanstack/react-router";
import { render, screen, waitFor } from "@testing-library/react";
import { HttpResponse, http, ws } from "msw";
import { setupServer } from "msw/node";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { queries } from "@/app/query-client";
import { routeTree } from "@/app/router";
import { live } from "@/live/store";
import { TipProvider } from "@/ui/tip";
import "./dom";
import { answer } from "../dev/answers";
import { channelData, makeTopics, START_MS } from "../dev/fixtures";

// Charts draw on canvases, which jsdom has not.
vi.mock("uplot", () => ({
  default: class {
    data = [];
    cursor = {};
    setData() {}
    setSize() {}
    destroy() {}
  },
}));

const topics = makeTopics(300);
const asked: string[] = [];
const server = setupServer(
  ws.link("ws://*/api/v1/live").addEventListener("connection", () => {}),
  http.get("*/health/ready", () => HttpResponse.json({ ok: true, checks: {} })),
  http.all("*/api/v1/*", async ({ request }) => {
    const text = await request.text();
    asked.push(`${request.method} ${new URL(request.url).pathname}`);
    const found = answer(
      request.method,
      new URL(request.url),
      text ? JSON.parse(text) : null,
      topics,
      START_MS,
    );
    return HttpResponse.json(found?.body as never, { status: found?.status ?? 404 });
  }),
);

beforeAll(() => {
  server.listen({ onUnhandledRequest: "error" });
  for (const channel of "overview topics reliability subscriptions nodes flow topic:md.us.equities".split(
    " ",
  )) {
    const data = channelData(channel, START_MS);
    live.apply(
      {
        seq: "1",
        at: new Date(START_MS).toISOString(),
        kind: "snapshot",
        channel,
        data: data ?? null,
      },
      START_MS,
    );
  }
});
afterEach(() => queries.clear());
afterAll(() => server.close());

async function open(path: string) {
  const router = createRouter({
    routeTree,
    history: createMemoryHistory({ initialEntries: [path] }),
  });
  await router.load();
  const page = render(
    <QueryClientProvider client={queries}>
      <TipProvider>
        <RouterProvider router={router as never} />
      </TipProvider>
    </QueryClientProvider>,
  );
  return { page, router };
}

describe("pages", () => {
  it.each([
    ["/", "Overview", "Bottlenecks"],
    ["/flow?view=table", "Flow", "From"],
    ["/reliability", "Reliability", "Flight recorder"],
    ["/topics", "Topics", "300 topics, 7 active"],
    ["/topics/md.us.equities", "md.us.equities", "Rate limits"],
    ["/subscriptions", "Subscriptions", "4 durable subscriptions, 8 live readers"],
    ["/subscriptions/settlement", "settlement", "Positions"],
    ["/messages?topic=orders.eu&view=publish", "Messages", "Payload"],
    ["/limits?topic=md.us.equities", "Rate limits", "everything"],
    ["/nodes", "Nodes", "alpha"],
    ["/pipelines?name=rollup", "Pipelines", "Runs of rollup"],
    ["/access", "Keys & users", "deploy"],
    ["/audit", "Audit", "All outcomes"],
    ["/alerts", "Alerts", "consumer-lag"],
    ["/login", "Sign in to Tidecast", "Password"],
  ])("%s shows what it should", { timeout: 20_000 }, async (path, title, part) => {
    const { page } = await open(path);
    await screen.findByRole("heading", { level: 1, name: title }, { timeout: 8_000 });
    await waitFor(() => expect(page.container.textContent).toContain(part), { timeout: 8_000 });
  });
});
