import { Link } from "@tanstack/react-router";
import { Layers } from "lucide-react";
import { Sparkline } from "@/charts/sparkline";
import { rate } from "@/lib/format";
import { useLivePart } from "@/live/store";
import { Card } from "@/ui/card";
import { Empty } from "@/ui/states";

/** The busiest topics, each with its last minutes. */
export function Busiest({ names }: { names: readonly string[] }) {
  const topics = useLivePart("topics", (data) => data.topics);
  return (
    <Card title="Busiest topics" flush>
      {names.length === 0 ? (
        <Empty icon={Layers} title="Idle" className="py-6">
          No topic carries traffic.
        </Empty>
      ) : (
        <ul className="pb-1.5">
          {names.slice(0, 6).map((name) => (
            <li key={name}>
              <Link
                to="/topics/$name"
                params={{ name }}
                className="flex h-8 items-center gap-3 px-3.5 transition-colors hover:bg-hover focus-visible:-outline-offset-2"
              >
                <span className="min-w-0 flex-1 truncate font-mono text-xs">{name}</span>
                <Sparkline
                  channel="topics"
                  name={`topics/${name}/messages_out`}
                  label={`${name} over the last minutes`}
                />
                <span className="num w-20 text-right text-xs">
                  {rate(topics?.[name]?.rates.messages_out, " msg/s")}
                </span>
              </Link>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}
