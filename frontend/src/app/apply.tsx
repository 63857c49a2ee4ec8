import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Download, FileUp, ListChecks } from "lucide-react";
import { useState } from "react";
import { ApiError, bodyOf, http, type Schemas } from "@/api/client";
import { placeOf } from "@/lib/yaml-place";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Code } from "@/ui/code";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input, TextArea, TextField } from "@/ui/field";
import { PlanView } from "@/ui/plan";
import { Failed, Loading } from "@/ui/states";
import { Switch } from "@/ui/switch";
import { TabPanel, Tabs } from "@/ui/tabs";
import { toast } from "@/ui/toast";
import { useMay } from "./session";

type Result = Schemas["ApplyResult"];
type Tab = "apply" | "export";

const PLANS_SHOWN_MAX = 100;
const EXAMPLE = `kind: topic
metadata: {name: orders.eu, labels: {team: shop}}
spec: {mode: durable, queues: 4}
---
kind: subscription
metadata: {name: billing}
spec: {topic: orders.eu}
`;

/** Many documents as YAML: what they would change, then all of them or none. And what is, as YAML. */
export function ApplyDialog({ onClose }: { onClose: () => void }) {
  const may = useMay();
  const [tab, setTab] = useState<Tab>(may("apply:write") ? "apply" : "export");
  const tabs = [
    ...(may("apply:write") ? [{ value: "apply" as const, label: "Apply" }] : []),
    ...(may("export:read") ? [{ value: "export" as const, label: "Export" }] : []),
  ];
  return (
    <Dialog
      open
      wide
      onOpenChange={(open) => !open && onClose()}
      title="YAML"
      lead="The platform as a file: keep it beside your code, and apply it again and again."
    >
      <Tabs value={tab} onChange={setTab} tabs={tabs}>
        <TabPanel value="apply">
          <Apply onDone={onClose} />
        </TabPanel>
        <TabPanel value="export">
          <Export />
        </TabPanel>
      </Tabs>
    </Dialog>
  );
}

function Apply({ onDone }: { onDone: () => void }) {
  const client = useQueryClient();
  const [text, setText] = useState("");
  const [managedBy, setManagedBy] = useState("");
  const [prune, setPrune] = useState(false);
  const [plan, setPlan] = useState<Result | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  // A plan is of one text: another text has none yet.
  const change = <T,>(set: (value: T) => void) => {
    return (value: T) => {
      set(value);
      setPlan(null);
      setError(null);
    };
  };
  const query = { managed_by: managedBy, prune: prune && managedBy !== "" };
  const send = async (dry_run: boolean) => {
    setBusy(true);
    setError(null);
    try {
      const result = await http
        .POST("/api/v1/apply", {
          params: { query: { ...query, dry_run } },
          headers: { "Content-Type": "application/yaml" },
          body: text as never,
          bodySerializer: (body: unknown) => body as string,
        })
        .then(bodyOf);
      if (dry_run) setPlan(result);
      else {
        toast.success(`Applied: ${counts(result)}`);
        client.invalidateQueries();
        onDone();
      }
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const changed = plan?.plans.filter((one) => one.action !== "none") ?? [];
  const path = `/api/v1/apply?${new URLSearchParams({ managed_by: managedBy, prune: String(query.prune) })}`;
  return (
    <div className="flex flex-col gap-3 pb-2">
      <Field label="Documents" hint="Several documents, with --- between them">
        {(field) => (
          <TextArea
            {...field}
            autoFocus
            rows={10}
            placeholder={EXAMPLE}
            value={text}
            onChange={(event) => change(setText)(event.target.value)}
          />
        )}
      </Field>
      <div className="flex flex-wrap items-end gap-4">
        <Field label="Managed by" hint="Marks the resources of this file" className="w-48">
          {(field) => (
            <Input
              {...field}
              value={managedBy}
              onChange={(event) => change(setManagedBy)(event.target.value)}
            />
          )}
        </Field>
        <div className="pb-6">
          <Switch
            label="Delete its resources that the file leaves out"
            checked={query.prune}
            disabled={!managedBy}
            onChange={change(setPrune)}
          />
        </div>
        <label className="mb-6 ml-auto inline-flex h-8 cursor-pointer items-center gap-1.5 rounded-md border border-line-strong px-3 font-medium text-sm hover:bg-hover has-focus-visible:outline-2 has-focus-visible:outline-accent">
          <FileUp aria-hidden className="size-3.5" />
          Open a file
          <input
            type="file"
            accept=".yaml,.yml,.json"
            className="sr-only"
            onChange={async (event) => {
              const file = event.target.files?.[0];
              if (file) change(setText)(await file.text());
            }}
          />
        </label>
      </div>
      {error !== null && <Failed error={placed(error, text)} />}
      {plan && (
        <section aria-label="Plan" className="flex flex-col gap-2">
          <p className="flex items-center gap-2 text-sm">
            <Badge tone={changed.length ? "info" : "good"}>
              {changed.length ? "plan" : "nothing to do"}
            </Badge>
            {counts(plan)}
          </p>
          {changed.slice(0, PLANS_SHOWN_MAX).map((one) => (
            <PlanView key={`${one.kind}/${one.name}`} plan={one} />
          ))}
          {changed.length > PLANS_SHOWN_MAX && (
            <p className="text-muted text-xs">and {changed.length - PLANS_SHOWN_MAX} more</p>
          )}
          {(plan.warnings ?? []).map((warning) => (
            <p key={warning} className="text-sm text-warn">
              {warning}
            </p>
          ))}
        </section>
      )}
      <footer className="flex items-center gap-2">
        <span className="mr-auto">
          <CopyAs action={{ method: "POST", path, text, type: "application/yaml" }} />
        </span>
        <Button
          icon={ListChecks}
          look={plan ? "plain" : "primary"}
          busy={busy}
          disabled={!text.trim()}
          onClick={() => send(true)}
        >
          Plan
        </Button>
        <Button
          look={plan ? "primary" : "plain"}
          busy={busy}
          disabled={changed.length === 0}
          onClick={() => send(false)}
        >
          Apply
        </Button>
      </footer>
    </div>
  );
}

/** The problems of documents, each with its name and line. */
function placed(error: unknown, text: string): unknown {
  if (!(error instanceof ApiError)) return error;
  const problems = (error.problem.errors ?? []).map(({ pointer, detail, allowed }) => {
    const place = placeOf(text, pointer);
    const field = pointer.split("/").slice(3).join(".");
    const where = place ? `Line ${place.line}, ${place.document}` : pointer;
    return `${where}${field ? `, ${field}` : ""}: ${detail}${allowed ? ` (allowed: ${allowed})` : ""}.`;
  });
  return problems.length > 0 ? problems.join(" ") : error;
}

const counts = (result: Result) =>
  [
    [result.created, "created"],
    [result.updated, "updated"],
    [result.deleted, "deleted"],
    [result.unchanged, "unchanged"],
  ]
    .filter(([count]) => count)
    .map(([count, word]) => `${count} ${word}`)
    .join(", ") || "nothing";

function Export() {
  const [managedBy, setManagedBy] = useState("");
  const query = useQuery({
    queryKey: ["export", managedBy],
    queryFn: () =>
      http
        .GET("/api/v1/export", {
          params: { query: { managed_by: managedBy } },
          parseAs: "text",
        })
        .then(bodyOf) as Promise<string>,
    staleTime: 0,
  });
  const path = `/api/v1/export?${new URLSearchParams({ managed_by: managedBy })}`;
  return (
    <div className="flex flex-col gap-3 pb-2">
      <div className="flex flex-wrap items-end gap-2">
        <TextField
          label="Only resources managed by"
          className="w-56"
          placeholder="everything"
          value={managedBy}
          onChange={setManagedBy}
        />
        <span className="ml-auto">
          <CopyAs action={{ method: "GET", path }} />
        </span>
        <a
          href={path}
          download="tidecast.yaml"
          className="inline-flex h-8 items-center gap-1.5 rounded-md border border-line-strong bg-panel px-3 font-medium text-sm hover:bg-hover"
        >
          <Download aria-hidden className="size-3.5" />
          Download
        </a>
      </div>
      {query.isError ? (
        <Failed error={query.error} retry={query.refetch} />
      ) : query.isPending ? (
        <Loading />
      ) : (
        <Code label="Export" text={query.data.slice(0, 64 * 1024) || "# nothing\n"} />
      )}
    </div>
  );
}
