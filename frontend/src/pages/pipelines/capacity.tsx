import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Lightbulb } from "lucide-react";
import type { Schemas } from "@/api/client";
import { capacityQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { byteRate, bytes, rate } from "@/lib/format";
import { ago } from "@/lib/time";
import { Card } from "@/ui/card";
import { Empty, Failed, Said } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { AdviceButton } from "./advice";

type Advice = Schemas["CapacityAdvice"];

const COLUMNS: Column<Advice>[] = [
  {
    id: "topic",
    head: "Topic",
    cell: (row) => (
      <Link
        to="/topics/$name"
        params={{ name: row.topic }}
        search={{ tab: "settings" }}
        className="font-mono text-accent text-xs hover:underline"
      >
        {row.topic}
      </Link>
    ),
  },
  {
    id: "peak",
    head: "At its peak",
    cell: (row) =>
      `${rate(row.peak_messages_per_s, " messages/s")}, ${byteRate(row.peak_bytes_per_s)}`,
  },
  {
    id: "spec",
    head: "Recommended",
    cell: (row) =>
      Object.entries(row.spec)
        .map(([field, value]) => `${field.replaceAll("_", " ")} ${bytes(value)}`)
        .join(", "),
  },
];

/** What the newest capacity report recommends for each topic. */
export function CapacityList() {
  const query = useQuery(capacityQuery);
  const may = useMay()("topics:write");
  const capacity = query.data;
  const preview: Column<Advice> = {
    id: "do",
    head: <span className="sr-only">Preview</span>,
    cell: (row) => <AdviceButton advice={row} />,
  };
  if (query.isError) return <Failed error={query.error} retry={query.refetch} />;
  return (
    <Card
      title="Capacity"
      hint={capacity?.made_at ? `report of ${ago(capacity.made_at, Date.now())}` : undefined}
      flush
    >
      <Table
        label="Recommendations"
        columns={may ? [...COLUMNS, preview] : COLUMNS}
        rows={capacity?.items ?? []}
        rowKey={(row) => row.topic}
        empty={
          <Empty icon={Lightbulb} title="No recommendation yet" className="py-6">
            <Said text={capacity?.mend || "the newest report has no recommendation"} />
          </Empty>
        }
      />
    </Card>
  );
}
