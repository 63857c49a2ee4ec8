import { useQuery } from "@tanstack/react-query";
import { capacityQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { ago } from "@/lib/time";
import { AdviceButton, Reasons } from "@/pages/pipelines/advice";
import { Card } from "@/ui/card";

/** What the newest capacity report says of this topic; nothing when it says nothing. */
export function CapacityCard({ topic }: { topic: string }) {
  const capacity = useQuery(capacityQuery).data;
  const may = useMay()("topics:write");
  const advice = capacity?.items?.find((one) => one.topic === topic);
  if (!advice) return null;
  return (
    <Card
      title="Recommended"
      hint={`capacity report, ${ago(capacity?.made_at, Date.now())}`}
      className="mb-3"
      actions={may && <AdviceButton advice={advice} />}
    >
      <Reasons of={advice} />
    </Card>
  );
}
