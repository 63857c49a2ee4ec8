import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { MessageSquareText } from "lucide-react";
import { useState } from "react";
import { useMay } from "@/app/session";
import { useTopicNames } from "@/app/topic-names";
import { Button } from "@/ui/button";
import { Combo } from "@/ui/combo";
import { Page } from "@/ui/page";
import { Segments } from "@/ui/segments";
import { Empty } from "@/ui/states";
import { Browse } from "./browse";
import { Publish } from "./publish";
import { ScheduledMessages } from "./scheduled";
import { Tail } from "./tail";

const route = getRouteApi("/app/messages");

export function MessagesPage() {
  const search = route.useSearch();
  const navigate = useNavigate();
  const may = useMay();
  const { topic = "", view = "tail", decoder = "auto" } = search;
  const [text, setText] = useState("");
  const names = useTopicNames(text);
  const set = (next: Partial<typeof search>) =>
    navigate({ to: "/messages", search: { ...search, ...next }, replace: true });
  return (
    <Page
      fill
      title="Messages"
      lead="Tail live messages or browse stored ones."
      actions={
        <>
          <Combo
            label="Topic"
            value={topic}
            onText={setText}
            onChange={(next) =>
              set({ topic: next, queue: undefined, node: undefined, at: undefined })
            }
            options={names}
            empty={<NoTopic />}
            className="w-64 max-sm:w-full"
          />
          <Segments
            label="View"
            value={view}
            onChange={(next) => set({ view: next })}
            options={[
              { value: "tail", label: "Live tail" },
              { value: "browse", label: "Browse" },
              { value: "scheduled", label: "Scheduled" },
              ...(may("messages:publish") ? [{ value: "publish" as const, label: "Publish" }] : []),
            ]}
          />
        </>
      }
    >
      {!topic ? (
        <Empty
          icon={MessageSquareText}
          title="Choose a topic"
          action={
            names.length > 0 ? (
              <div className="flex flex-wrap justify-center gap-2">
                {names.slice(0, OFFERED_MAX).map((name) => (
                  <Button key={name} onClick={() => set({ topic: name })}>
                    {name}
                  </Button>
                ))}
              </div>
            ) : (
              <NoTopic />
            )
          }
        >
          Its messages are shown live. Reading them here changes no position and consumes no
          message.
        </Empty>
      ) : view === "tail" ? (
        <Tail
          key={topic}
          topic={topic}
          decoder={decoder}
          onDecoder={(next) => set({ decoder: next })}
        />
      ) : view === "browse" ? (
        <Browse key={topic} topic={topic} search={search} set={set} />
      ) : view === "scheduled" ? (
        <ScheduledMessages key={topic} topic={topic} />
      ) : (
        <Publish key={topic} topic={topic} />
      )}
    </Page>
  );
}

const OFFERED_MAX = 6;

function NoTopic() {
  return (
    <span>
      No topic of that name.{" "}
      <Link
        to="/topics"
        search={{ create: true }}
        className="rounded font-medium text-accent hover:underline"
      >
        Create one
      </Link>
    </span>
  );
}
