// @vitest-environment jsdom
// Each page on the fixture platform. Whether all can use them is asked in a browser: tests/e2e.
import { QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, createRouter, RouterProvider } from "@tanstack/react-router";
import { act, configure, render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { HttpResponse, http, ws } from "msw";
import { setupServer } from "msw/node";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { queries } from "@/app/query-client";
import { routeTree } from "@/app/router";
import { live } from "@/live/store";
import type { Rates } from "@/live/types";
import { sentNote } from "@/pages/topics/detail";
import { SyncBadge } from "@/pages/topics/sync-badge";
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

// Nets under what hangs, not claims about speed: a busy machine is slow.
configure({ asyncUtilTimeout: 60_000 });

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
  for (const channel of "overview topics reliability subscriptions nodes flow keys topic:md.us.equities topic:orders.audit topic:feed.kafka".split(
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
    ["/topics/feed.kafka", "feed.kafka", "waiting: 10.1.0.30:9092: connection refused"],
    ["/subscriptions", "Subscriptions", "4 durable subscriptions, 8 live readers"],
    ["/subscriptions/settlement", "settlement", "Positions"],
    ["/messages?topic=orders.eu&view=publish", "Messages", "Payload"],
    ["/limits?topic=md.us.equities", "Rate limits", "everything"],
    ["/nodes", "Nodes", "alpha"],
    ["/cluster", "Cluster", "draining, 1 left"],
    ["/pipelines?name=rollup", "Pipelines", "Runs of rollup"],
    ["/mirrors?name=orders", "Mirrors", "Progress of orders"],
    ["/access", "Keys & users", "deploy"],
    ["/audit", "Audit", "All outcomes"],
    ["/alerts", "Alerts", "consumer-lag"],
    ["/login", "Sign in to Tidecast", "Password"],
  ])("%s shows what it should", async (path, title, part) => {
    const { page } = await open(path);
    await screen.findByRole("heading", { level: 1, name: title });
    await waitFor(() => expect(page.container.textContent).toContain(part));
  });
});

describe("what a page says", () => {
  it("of a limit: readers on the publisher's node are not limited", async () => {
    const { page } = await open("/topics/md.us.equities");
    await waitFor(() =>
      expect(page.container.textContent).toContain("readers on its own node are not limited"),
    );
  });

  it("of tables of keys and headers: the share of the bytes that they save", async () => {
    const { page } = await open("/topics/md.us.equities");
    await waitFor(() => expect(page.container.textContent).toContain("tables save 20.0%"));
    await screen.findAllByText("Saved");
    expect(sentNote("tables", undefined)).not.toContain("tables");
    const made = { bytes_out: 1000, bytes_saved: 0 } as Rates;
    expect(sentNote("off", made)).not.toContain("tables");
    expect(sentNote("tables", made)).toContain("tables save 0%");
  });

  it("of lag: packets of live readers and messages of durable ones apart", async () => {
    await open("/topics");
    await screen.findByText("Live lag (pkt)");
    await screen.findByText("Durable lag (msg)");
  });

  it("of first steps: nothing on a platform that has topics", async () => {
    const { page } = await open("/");
    await screen.findByRole("heading", { level: 1, name: "Overview" });
    await waitFor(() => expect(page.container.textContent).toContain("Bottlenecks"));
    expect(screen.queryByRole("region", { name: "First steps" })).toBeNull();
  });

  it("of the cluster: what holds the next level back, and which node was refused", async () => {
    await open("/cluster");
    const card = await screen.findByRole("region", { name: "Cluster" });
    await within(card).findByText("Level 2");
    const reasons = within(card).getByRole("list", { name: "What holds level 3 back" });
    expect(reasons.textContent).toContain("node gamma (0.2.0) reads levels 1 to 2");
    const row = (name: string) => within(card).getByRole("row", { name: new RegExp(`^${name}`) });
    expect(row("gamma").textContent).toContain("holds level 3 back");
    expect(row("delta").textContent).toContain("refusedengine 0.1.0 reads level 1");
    expect(row("alpha").textContent).not.toContain("refused");
    await waitFor(() => expect(row("alpha").textContent).toContain("hears 2lan 10.0.0.5:7400"));
    expect(row("beta").textContent).toContain("does not hear gamma on lan");
    const raise = within(card).getByRole("button", { name: "Raise the level" });
    expect((raise as HTMLButtonElement).disabled).toBe(true);
  });

  it("of the cluster's level: the plan before it is raised, to the level of the plan", async () => {
    const sent: string[] = [];
    server.use(
      http.get("*/api/v1/cluster", () => {
        const found = answer("GET", new URL("http://x/api/v1/cluster"), null, topics, START_MS);
        return HttpResponse.json({ ...(found?.body as object), blocked_by: [] });
      }),
      http.post("*/api/v1/cluster/finalize", ({ request }) => {
        const url = new URL(request.url);
        sent.push(url.search);
        return HttpResponse.json(answer("POST", url, null, topics, START_MS)?.body as never);
      }),
    );
    const user = userEvent.setup();
    await open("/cluster");
    const raise = await screen.findByRole("button", { name: "Raise the level" });
    await user.click(raise);
    const dialog = await screen.findByRole("dialog");
    const plan = await within(dialog).findByRole("region", { name: "Preview" });
    expect(plan.textContent).toMatch(/level.*2.*3/);
    const confirm = within(dialog).getByRole("button", { name: "Raise to level 3" });
    expect((confirm as HTMLButtonElement).disabled).toBe(true);
    expect(sent).toEqual(["?level=3&dry_run=true"]);
    await user.type(within(dialog).getByLabelText("Type cluster to confirm"), "cluster");
    await user.click(confirm);
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(sent[1]).toBe("?level=3");
    server.resetHandlers();
  });

  it("of a drain: what moves and what stays before it begins, and who moved where", async () => {
    const sent: unknown[] = [];
    server.use(
      http.patch("*/api/v1/nodes/beta", async ({ request }) => {
        sent.push(await request.json());
        return HttpResponse.json({ name: "beta" });
      }),
    );
    const user = userEvent.setup();
    await open("/cluster");
    const engines = await screen.findByRole("table", { name: "Engines of the cluster" });
    const row = within(engines).getByRole("row", { name: /^beta/ });
    await user.click(within(row).getByRole("button", { name: "Drain" }));
    const dialog = await screen.findByRole("dialog", { name: "Drain beta?" });
    const preview = await within(dialog).findByRole("region", { name: "Preview" });
    expect(preview.textContent).toContain("2 leased topics moveorders.eu, orders.us");
    expect(preview.textContent).toContain("owner is not *");
    await user.click(within(dialog).getByRole("button", { name: "Drain" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(sent).toEqual([{ spec: { drained: true } }]);
    const moves = screen.getByRole("table", { name: "Moves of leased topics" });
    expect(moves.textContent).toContain("the node is drained");
    expect(within(moves).getByText("no node yet")).toBeDefined();
    server.resetHandlers();
  });

  it("of topics of adapters: their state and counts, by node", async () => {
    await open("/topics/feed.kafka");
    const card = await screen.findByRole("region", { name: "Adapters" });
    const cells = (name: string) =>
      within(within(card).getByRole("row", { name: new RegExp(`^${name}`) }))
        .getAllByRole("cell")
        .map((cell) => cell.textContent);
    expect(cells("alpha")[2]).toMatch(/^waitingsince 20\d\d-/);
    expect(cells("alpha").slice(3)).toEqual(["0", "0", "0", "0", "0", "0"]);
    expect(cells("beta").slice(1)).toEqual(["kafka", "open", "6", "184,302", "740", "2", "1", "3"]);
    expect(screen.queryByRole("alert")).toBeNull();
  });

  it("of a topic's storage on Kafka: why it waits, and how much is not there yet", async () => {
    await open("/topics/orders.audit");
    const card = await screen.findByRole("region", { name: "Storage" }, { timeout: 8_000 });
    const cells = within(within(card).getByRole("row", { name: /^alpha/ }))
      .getAllByRole("cell")
      .map((cell) => cell.textContent);
    expect(cells[1]).toBe("kafka://10.1.0.40:9092/audit");
    expect(cells[2]).toMatch(/^waitingsince 20\d\d-/);
    expect(cells.slice(3)).toEqual(["12,345", "184,302", "7"]);
    expect(within(card).getByRole("note").textContent).toBe("waiting: no broker answers");
    expect(screen.getAllByText("storage waiting")).toHaveLength(1);
  });

  it("of a topic that is no resource: nothing before the first live frame says what it is", async () => {
    const link = live.getLink();
    await open("/topics/no.such");
    await waitFor(() =>
      expect(queries.getQueryState(["topics", "one", "no.such"])?.status).toBe("error"),
    );
    act(() => live.setLink("live"));
    expect(screen.queryByRole("alert")).toBeNull();
    expect(screen.getByRole("status", { name: "Loading" })).toBeTruthy();
    const frame = { seq: "2", at: new Date(START_MS).toISOString(), channel: "topic:no.such" };
    const data = channelData("topic:no.such", START_MS) ?? null;
    act(() => live.apply({ ...frame, kind: "snapshot", data }, START_MS));
    expect((await screen.findByRole("alert")).textContent).toContain("no.such");
    live.setLink(link);
  });

  it("of refused requests: how many of each key, and of callers in no row", async () => {
    await open("/access");
    const row = async (name: string) =>
      (await screen.findByRole("row", { name: new RegExp(`^${name}`) })).textContent;
    expect(await row("deploy")).toContain("12 denied0 over quota");
    expect(await row("deploy")).not.toContain("now");
    expect(await row("pricer")).toContain("1,041 denied3 over quota4.20/s now");
    expect(await row("old-gateway")).toContain("none");
    const others = screen.getByRole("list", { name: /^Refused requests without a key/ });
    expect(others.textContent).toBe("(others)7 denied0 over quota");
  });

  it("of pipelines without Spark: that they cannot be started", async () => {
    server.use(
      http.get("*/api/v1/system", () => {
        const found = answer("GET", new URL("http://x/api/v1/system"), null, topics, START_MS);
        return HttpResponse.json({ ...(found?.body as object), spark: false });
      }),
    );
    await open("/pipelines?name=rollup");
    await screen.findByText(/^PySpark is not installed/);
    const starts = await screen.findAllByRole("button", { name: /^Start / });
    for (const start of starts) expect((start as HTMLButtonElement).disabled).toBe(true);
    server.resetHandlers();
  });

  it("of a topic that was just changed: applying, and out of sync only later", () => {
    const ago = (ms: number) => new Date(Date.now() - ms).toISOString();
    const { container, rerender } = render(<SyncBadge drift since={ago(1_000)} />);
    expect(container.textContent).toBe("applying");
    rerender(<SyncBadge drift since={ago(60_000)} />);
    expect(container.textContent).toBe("out of sync");
    rerender(<SyncBadge drift={false} since={ago(1_000)} />);
    expect(container.textContent).toBe("in sync");
  });
});
