import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Gauge, Plus } from "lucide-react";
import { useState } from "react";
import { type RateLimit, rateLimitsQuery, type Topic, topicQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { useTopicNames } from "@/app/topic-names";
import { byteRate, exact, rate } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Combo } from "@/ui/combo";
import { Page } from "@/ui/page";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { PolicyEditor } from "./editor";

const route = getRouteApi("/app/limits");

/** `null`: not set here; 0: unlimited. */
const shown = (value: number | null | undefined, format: (value: number) => string) =>
  value == null ? "–" : value === 0 ? "no limit" : format(value);
const packets = (value: number) => rate(value, " pkt/s");

/** Policies by name pattern, and the effective limits of any topic with their sources. */
export function LimitsPage() {
  const { topic = "", edit, create } = route.useSearch();
  const navigate = useNavigate();
  const may = useMay()("rate_limits:write");
  const list = useQuery(rateLimitsQuery);
  // The editor is a part of the address: the palette opens it, and Back closes it.
  const open = (next: { edit?: string; create?: true }) =>
    navigate({ to: "/limits", search: { topic: topic || undefined, ...next }, replace: true });
  const policies = ((list.data?.items ?? []) as RateLimit[]).toSorted(
    (a, b) =>
      (b.spec.priority ?? 0) - (a.spec.priority ?? 0) ||
      a.metadata.name.localeCompare(b.metadata.name),
  );
  return (
    <Page
      title="Rate limits"
      lead="Policies for every publisher of the topics that match a pattern. They take effect on the wire at once."
      actions={
        may && (
          <Button look="primary" icon={Plus} onClick={() => open({ create: true })}>
            Create policy
          </Button>
        )
      }
    >
      {list.isError && <Failed error={list.error} retry={list.refetch} />}
      {list.isPending && <Loading />}
      {list.data && (
        <div className="grid grid-cols-1 gap-3 xl:grid-cols-3">
          <Card
            title="Policies"
            hint="the highest priority wins, then the most exact pattern; a topic's own setting overrides all policies"
            flush
            className="xl:col-span-2"
          >
            {policies.length === 0 ? (
              <Empty
                icon={Gauge}
                title="No policy yet"
                className="py-8"
                action={
                  may && (
                    <Button look="primary" icon={Plus} onClick={() => open({ create: true })}>
                      Create policy
                    </Button>
                  )
                }
              >
                A policy such as 10 MiB/s for <code className="font-mono">md.*</code> limits all
                topics of this pattern, also future topics. Limit a single topic on its own page.
              </Empty>
            ) : (
              <Table
                label="Policies"
                columns={COLUMNS}
                rows={policies}
                rowKey={(row) => row.metadata.name}
                {...(may ? { onRow: (row: RateLimit) => open({ edit: row.metadata.name }) } : {})}
              />
            )}
          </Card>
          <Effective
            topic={topic}
            onTopic={(next) =>
              navigate({ to: "/limits", search: { topic: next || undefined }, replace: true })
            }
          />
        </div>
      )}
      {may && (edit || create) && (
        <PolicyEditor {...(edit ? { name: edit } : {})} onClose={() => open({})} />
      )}
    </Page>
  );
}

const COLUMNS: Column<RateLimit>[] = [
  {
    id: "name",
    head: "Policy",
    cell: (row) => <b className="font-medium">{row.metadata.name}</b>,
  },
  {
    id: "pattern",
    head: "Topics",
    cell: (row) => <span className="font-mono text-xs">{row.spec.pattern}</span>,
  },
  {
    id: "publisher",
    wide: true,
    head: "Publishers on node",
    cell: (row) => row.spec.publisher || "all nodes",
  },
  {
    id: "priority",
    wide: true,
    head: "Priority",
    right: true,
    cell: (row) => exact(row.spec.priority ?? 0),
  },
  {
    id: "packets",
    head: "Packets/s",
    right: true,
    cell: (row) => shown(row.spec.rate_packets_per_s, packets),
  },
  {
    id: "bytes",
    head: "Bytes/s",
    right: true,
    cell: (row) => shown(row.spec.rate_bytes_per_s, byteRate),
  },
  {
    id: "matched",
    head: "Effective / matching",
    right: true,
    cell: (row) =>
      row.status.topics_effective === 0 && row.status.topics_matched > 0 ? (
        <Badge tone="warn">0 / {exact(row.status.topics_matched)}</Badge>
      ) : (
        `${exact(row.status.topics_effective)} / ${exact(row.status.topics_matched)}`
      ),
  },
];

function Effective({ topic, onTopic }: { topic: string; onTopic: (topic: string) => void }) {
  const [text, setText] = useState("");
  const names = useTopicNames(text);
  const query = useQuery({ ...topicQuery(topic), enabled: topic !== "" });
  const found = topic ? (query.data as Topic | undefined)?.status.effective_rate : undefined;
  return (
    <Card title="Effective limits of a topic">
      <Combo
        label="Choose a topic"
        value={topic}
        options={names}
        onText={setText}
        onChange={onTopic}
        className="w-full"
      />
      {topic && query.isError && (
        <div className="mt-3">
          <Failed error={query.error} />
        </div>
      )}
      {found ? (
        <dl className="mt-3 flex flex-col gap-2.5 text-sm">
          <Held
            name="Packets/s"
            value={shown(found.packets_per_s, packets)}
            source={found.packets_source}
            topic={topic}
          />
          <Held
            name="Bytes/s"
            value={shown(found.bytes_per_s, byteRate)}
            source={found.bytes_source}
            topic={topic}
          />
          {(found.shadowed ?? []).length > 0 && (
            <div>
              <dt className="text-muted">Overridden</dt>
              <dd>{found.shadowed?.join(", ")}</dd>
            </div>
          )}
        </dl>
      ) : (
        !topic && (
          <p className="mt-3 text-muted text-sm">
            The limits in effect, each with its policy or setting.
          </p>
        )
      )}
    </Card>
  );
}

function Held(props: { name: string; value: string; source: string; topic: string }) {
  const { name, value, source, topic } = props;
  return (
    <div>
      <dt className="text-muted">{name}</dt>
      <dd className="flex items-center gap-2">
        <b className="num font-semibold">{value}</b>
        {source === "spec" ? (
          <Link to="/topics/$name" params={{ name: topic }} className="rounded">
            <Badge tone="accent">set on the topic</Badge>
          </Link>
        ) : (
          <Badge>
            {source === "none" ? "unlimited" : `by ${source.replace("rate_limit/", "policy ")}`}
          </Badge>
        )}
      </dd>
    </div>
  );
}
