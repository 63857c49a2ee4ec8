import { CirclePause, CirclePlay, Eraser, Radio } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import type { MessageView } from "@/api/queries";
import { useTidecast } from "@/app/commands";
import { exact, plural } from "@/lib/format";
import { live, useLiveError, useOpen } from "@/live/store";
import type { MessagesLive } from "@/live/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { SearchInput } from "@/ui/field";
import { Empty, Failed } from "@/ui/states";
import { DecoderSelect, MessageTable, type Wanted } from "./message-table";
import { shownPayload } from "./message-view";

/** Messages kept on the page; older ones make room. */
const KEPT_MAX = 2_000;

/** Live messages, newest first. Those that are not shown are counted. */
export function Tail({
  topic,
  decoder,
  onDecoder,
}: {
  topic: string;
  decoder: Wanted;
  onDecoder: (decoder: Wanted) => void;
}) {
  const tidecast = useTidecast();
  const channel = `messages:${topic}`;
  const [messages, setMessages] = useState<readonly MessageView[]>([]);
  const [skipped, setSkipped] = useState(0);
  const [withheld, setWithheld] = useState(false);
  const [held, setHeld] = useState(false);
  const [query, setQuery] = useState("");
  const holding = useRef(false);
  const error = useLiveError(channel);
  const listening = useOpen(channel);
  holding.current = held;
  useEffect(
    () =>
      live.watch(channel, (data) => {
        const news = data as MessagesLive;
        if (holding.current) return;
        setWithheld(news.withheld ?? false);
        setSkipped((count) => count + Number(news.skipped ?? 0));
        if (news.messages?.length) {
          setMessages((before) => [...news.messages.toReversed(), ...before].slice(0, KEPT_MAX));
        }
      }),
    [channel],
  );
  const text = query.toLowerCase();
  const rows = text
    ? messages.filter(
        (one) =>
          (one.key ?? "").toLowerCase().includes(text) ||
          (shownPayload(one.payload, decoder)?.summary ?? "").toLowerCase().includes(text),
      )
    : messages;
  return (
    <div className="flex h-full min-h-0 flex-col gap-2">
      <div className="flex flex-wrap items-center gap-2">
        <Button
          icon={held ? CirclePlay : CirclePause}
          aria-pressed={held}
          onClick={() => setHeld(!held)}
        >
          {held ? "Resume" : "Pause"}
        </Button>
        <Button
          icon={Eraser}
          look="quiet"
          onClick={() => {
            setMessages([]);
            setSkipped(0);
          }}
        >
          Clear
        </Button>
        <SearchInput
          aria-label="Filter shown messages"
          placeholder="Key or payload"
          className="w-56 max-sm:w-full"
          value={query}
          onChange={(event) => setQuery(event.target.value)}
        />
        <DecoderSelect value={decoder} onChange={onDecoder} />
        <span className="num ml-auto flex items-center gap-2 text-muted text-xs">
          {withheld && <Badge tone="warn">payloads withheld</Badge>}
          {plural(rows.length, "message")}
          {skipped > 0 && <Badge>{exact(skipped)} not shown (sampled)</Badge>}
        </span>
      </div>
      {error ? (
        <Failed error={error} />
      ) : (
        <div className="min-h-0 flex-1">
          <MessageTable
            messages={rows}
            decoder={decoder}
            empty={
              <Empty
                icon={Radio}
                title={query ? "No message matches" : listening ? "Listening" : "Connecting"}
                commands={query || !listening ? [] : [tidecast("pub", topic, "--message", "hello")]}
              >
                {query
                  ? "Only messages on the page are filtered."
                  : listening
                    ? "The next message appears here."
                    : "The engine does not send its messages yet."}
              </Empty>
            }
          />
        </div>
      )}
    </div>
  );
}
