import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Bell, BellOff, BellPlus, Plus } from "lucide-react";
import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import {
  type Alert,
  type AlertRule,
  alertRulesQuery,
  alertsQuery,
  type Silence,
  silencesQuery,
} from "@/api/queries";
import { useMay } from "@/app/session";
import { compact, duration } from "@/lib/format";
import { ago, dateTime, useZone } from "@/lib/time";
import { ActionButton } from "@/ui/action-button";
import { Badge, StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Page } from "@/ui/page";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { TabPanel, Tabs } from "@/ui/tabs";
import { isState, METRICS, type Metric } from "./metrics";
import { RuleEditor } from "./rule-editor";
import { SilenceEditor } from "./silence-editor";

const route = getRouteApi("/app/alerts");
const SEVERITIES = { info: "info", warning: "warn", critical: "bad" } as const;
const nameOf = (metric: string) => METRICS[metric as Metric]?.name ?? metric;

export function AlertsPage() {
  const { tab = "fired", edit, create } = route.useSearch();
  const navigate = useNavigate();
  const may = useMay();
  const fired = useQuery(alertsQuery);
  const rules = useQuery(alertRulesQuery);
  const silences = useQuery(silencesQuery);
  const open = (next: { edit?: string; create?: true }) =>
    navigate({ to: "/alerts", search: { tab, ...next }, replace: true });
  const [silence, setSilence] = useState<{ rule: string; target: string } | null>(null);
  const alerts = (fired.data?.items ?? []) as Alert[];
  const failed = [fired, rules, silences].find((one) => one.isError);
  return (
    <Page
      title="Alerts"
      lead="Rules over live figures. An alert calls its webhooks when it fires and when it resolves."
      actions={
        <>
          {may("silences:write") && (
            <Button icon={BellOff} onClick={() => setSilence({ rule: "", target: ">" })}>
              Silence
            </Button>
          )}
          {may("alert_rules:write") && (
            <Button look="primary" icon={BellPlus} onClick={() => open({ create: true })}>
              Create rule
            </Button>
          )}
        </>
      }
    >
      {failed && <Failed error={failed.error} retry={failed.refetch} />}
      <Tabs
        value={tab}
        onChange={(next) => navigate({ to: "/alerts", search: { tab: next }, replace: true })}
        tabs={[
          {
            value: "fired",
            label: "Active and past",
            count: fired.data && alerts.filter((one) => one.state === "firing").length,
          },
          { value: "rules", label: "Rules", count: rules.data?.items.length },
          { value: "silences", label: "Silences", count: silences.data?.items.length },
        ]}
      >
        <TabPanel value="fired">
          {fired.isPending ? (
            <Loading />
          ) : (
            <Fired
              alerts={alerts}
              onSilence={may("silences:write") ? setSilence : undefined}
              onCreate={may("alert_rules:write") ? () => open({ create: true }) : undefined}
            />
          )}
        </TabPanel>
        <TabPanel value="rules">
          {rules.isPending ? (
            <Loading />
          ) : (
            <Rules
              rules={(rules.data?.items ?? []) as AlertRule[]}
              onRule={(name) => open({ edit: name })}
            />
          )}
        </TabPanel>
        <TabPanel value="silences">
          {silences.isPending ? (
            <Loading />
          ) : (
            <Silences silences={(silences.data?.items ?? []) as Silence[]} />
          )}
        </TabPanel>
      </Tabs>
      {may("alert_rules:write") && (edit || create) && (
        <RuleEditor {...(edit ? { name: edit } : {})} onClose={() => open({})} />
      )}
      {silence && <SilenceEditor {...silence} onClose={() => setSilence(null)} />}
    </Page>
  );
}

/** A node that it is about is not heard: the state is the last that is known. */
const hasNoData = (alert: Alert) => alert.no_data === true;

function Fired({
  alerts,
  onSilence,
  onCreate,
}: {
  alerts: Alert[];
  onSilence: ((about: { rule: string; target: string }) => void) | undefined;
  onCreate: (() => void) | undefined;
}) {
  const zone = useZone();
  const now = Date.now();
  const columns: Column<Alert>[] = [
    {
      id: "state",
      head: "State",
      cell: (row) =>
        row.state === "resolved" ? (
          <StateBadge state="good">resolved</StateBadge>
        ) : (
          <span className="inline-flex gap-1">
            <StateBadge state={SEVERITIES[row.severity]}>
              {row.silenced ? `${row.severity}, silenced` : row.severity}
            </StateBadge>
            {hasNoData(row) && <StateBadge state="plain">no data</StateBadge>}
          </span>
        ),
    },
    { id: "rule", head: "Rule", cell: (row) => <b className="font-medium">{row.rule}</b> },
    {
      id: "target",
      head: "Target",
      cell: (row) => <span className="font-mono text-xs">{row.target}</span>,
    },
    {
      id: "value",
      wide: true,
      head: "Value / threshold",
      right: true,
      cell: (row) => `${compact(row.value)} / ${compact(row.threshold)}`,
    },
    { id: "metric", wide: true, head: "Metric", cell: (row) => nameOf(row.metric) },
    {
      id: "since",
      wide: true,
      head: "Since",
      cell: (row) => (
        <span className="num" title={dateTime(row.started_at, zone)}>
          {ago(row.started_at, now)}
        </span>
      ),
    },
    {
      id: "lasted",
      wide: true,
      head: "Duration",
      cell: (row) =>
        duration(
          ((row.resolved_at ? Date.parse(row.resolved_at) : now) - Date.parse(row.started_at)) /
            1000,
        ),
    },
    { id: "webhook", wide: true, head: "Webhook", cell: (row) => row.delivery || "–" },
    {
      id: "act",
      head: <span className="sr-only">Actions</span>,
      right: true,
      cell: (row) =>
        onSilence &&
        row.state === "firing" &&
        !row.silenced && (
          <Button
            size="sm"
            icon={BellOff}
            onClick={() => onSilence({ rule: row.rule, target: row.target })}
          >
            Silence
          </Button>
        ),
    },
  ];
  return (
    <Card flush label="Active and past alerts">
      <Table
        label="Active and past alerts"
        columns={columns}
        rows={alerts}
        rowKey={(row) => row.id}
        empty={
          <Empty
            icon={Bell}
            title="No alerts"
            action={
              onCreate && (
                <Button icon={Plus} onClick={onCreate}>
                  Create rule
                </Button>
              )
            }
          >
            No alert has fired. A good first rule: lag in seconds above 10 for a minute.
          </Empty>
        }
      />
    </Card>
  );
}

/** `>` is every name. */
function Target({ pattern }: { pattern: string }) {
  return pattern === ">" ? "anything" : <code className="font-mono text-xs">{pattern}</code>;
}

function Rules({ rules, onRule }: { rules: AlertRule[]; onRule: (name: string) => void }) {
  const may = useMay()("alert_rules:write");
  const columns: Column<AlertRule>[] = [
    { id: "name", head: "Rule", cell: (row) => <b className="font-medium">{row.metadata.name}</b> },
    {
      id: "says",
      head: "Fires when",
      cell: (row) => (
        <span className="num">
          {nameOf(row.spec.metric)} of <Target pattern={row.spec.target ?? ">"} />
          {isState(row.spec.metric)
            ? ""
            : ` is ${row.spec.comparison} ${compact(row.spec.threshold ?? 0)}`}{" "}
          for {duration(row.spec.for_s)}
        </span>
      ),
    },
    {
      id: "severity",
      wide: true,
      head: "Severity",
      cell: (row) => (
        <Badge tone={SEVERITIES[row.spec.severity ?? "warning"]}>{row.spec.severity}</Badge>
      ),
    },
    {
      id: "firing",
      head: "Firing",
      right: true,
      cell: (row) => (row.status.firing ? <Badge tone="bad">{row.status.firing}</Badge> : "0"),
    },
    {
      id: "webhook",
      wide: true,
      head: "Webhook",
      cell: (row) => (
        <span className="block max-w-56 truncate font-mono text-faint text-xs">
          {row.spec.webhook || "none"}
        </span>
      ),
    },
    {
      id: "enabled",
      head: "State",
      cell: (row) =>
        row.status.error ? (
          <Badge tone="bad">{row.status.error}</Badge>
        ) : row.spec.enabled ? (
          <Badge tone="good">on</Badge>
        ) : (
          <Badge>off</Badge>
        ),
    },
    {
      id: "act",
      head: <span className="sr-only">Actions</span>,
      right: true,
      cell: (row) =>
        may && (
          <span className="inline-flex gap-1">
            <ActionButton
              run={() =>
                http.PATCH("/api/v1/alert-rules/{name}", {
                  params: { path: { name: row.metadata.name } },
                  body: wanted<Schemas["MergePatch"]>({ spec: { enabled: !row.spec.enabled } }),
                })
              }
              copy={{
                method: "PATCH",
                path: `/api/v1/alert-rules/${row.metadata.name}`,
                body: { spec: { enabled: !row.spec.enabled } },
              }}
            >
              {row.spec.enabled ? "Switch off" : "Switch on"}
            </ActionButton>
            <Button
              size="sm"
              onClick={() => onRule(row.metadata.name)}
              aria-label={`Edit ${row.metadata.name}`}
            >
              Edit
            </Button>
          </span>
        ),
    },
  ];
  return (
    <Card flush label="Rules">
      <Table
        label="Rules"
        columns={columns}
        rows={rules}
        rowKey={(row) => row.metadata.name}
        empty={
          <Empty icon={BellPlus} title="No rules yet">
            A rule watches one metric of the topics, subscriptions or nodes that match a name or a
            pattern.
          </Empty>
        }
      />
    </Card>
  );
}

function Silences({ silences }: { silences: Silence[] }) {
  const may = useMay()("silences:write");
  const zone = useZone();
  const columns: Column<Silence>[] = [
    {
      id: "state",
      head: "State",
      cell: (row) =>
        row.status.active ? <StateBadge state="paused">active</StateBadge> : <Badge>expired</Badge>,
    },
    { id: "rule", head: "Rule", cell: (row) => row.spec.rule || "all rules" },
    {
      id: "target",
      head: "Target",
      cell: (row) => <span className="font-mono text-xs">{row.spec.target}</span>,
    },
    {
      id: "until",
      head: "Until",
      cell: (row) => <span className="num">{dateTime(row.spec.until, zone)}</span>,
    },
    { id: "reason", head: "Reason", cell: (row) => row.spec.reason },
    { id: "by", wide: true, head: "By", cell: (row) => row.metadata.updated_by },
    {
      id: "act",
      head: <span className="sr-only">Actions</span>,
      right: true,
      cell: (row) =>
        may && (
          <span className="inline-flex gap-1">
            <ActionButton
              run={() =>
                http.DELETE("/api/v1/silences/{name}", {
                  params: { path: { name: row.metadata.name } },
                })
              }
              done="The silence has ended"
              copy={{ method: "DELETE", path: `/api/v1/silences/${row.metadata.name}` }}
            >
              End
            </ActionButton>
          </span>
        ),
    },
  ];
  return (
    <Card flush label="Silences">
      <Table
        label="Silences"
        columns={columns}
        rows={silences}
        rowKey={(row) => row.metadata.name}
        empty={
          <Empty icon={BellOff} title="No silence">
            A silence suspends webhooks for a while; alerts are still listed here.
          </Empty>
        }
      />
    </Card>
  );
}
