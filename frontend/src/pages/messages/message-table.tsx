import { useNavigate } from "@tanstack/react-router";
import { Lock } from "lucide-react";
import { useMemo, useState } from "react";
import type { MessageView } from "@/api/queries";
import { DECODERS, type Decoder } from "@/lib/decode";
import { bytes, NONE } from "@/lib/format";
import { clock, dateTime, toDate, useZone } from "@/lib/time";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Facts } from "@/ui/card";
import { Code } from "@/ui/code";
import { Dialog } from "@/ui/dialog";
import { Segments } from "@/ui/segments";
import { Select } from "@/ui/select";
import type { Column } from "@/ui/table";
import { VirtualTable } from "@/ui/virtual-table";
import { keyOfMessage, placeOf, shownPayload } from "./message-view";

export type Wanted = Decoder | "auto";
const NAMES: Record<Wanted, string> = {
  auto: "Auto",
  json: "JSON",
  messagepack: "MessagePack",
  text: "Text",
  hex: "Hex",
};
const DECODER_CHOICES = (["auto", ...DECODERS] as const).map((value) => ({
  value,
  label: NAMES[value],
}));

export function DecoderSelect({
  value,
  onChange,
}: {
  value: Wanted;
  onChange: (value: Wanted) => void;
}) {
  return (
    <Select
      label="Decoder"
      className="w-36"
      value={value}
      onChange={onChange}
      options={DECODER_CHOICES}
    />
  );
}

interface Props {
  messages: readonly MessageView[];
  decoder: Wanted;
  empty: React.ReactNode;
}

export function MessageTable({ messages, decoder, empty }: Props) {
  const zone = useZone();
  const [open, setOpen] = useState<MessageView | null>(null);
  const placed = messages.some((one) => placeOf(one) !== NONE);
  const columns = useMemo(
    (): Column<MessageView>[] => [
      {
        id: "at",
        head: "Time",
        width: "7.5rem",
        cell: (row) => (
          <span className="num font-mono text-muted text-xs">{clock(row.at, zone, "millis")}</span>
        ),
      },
      // A live message has no offset: then the column says nothing.
      ...(placed
        ? [
            {
              id: "place",
              wide: true,
              head: "Queue:offset",
              width: "11.5rem",
              right: true,
              cell: (row: MessageView) => <span className="font-mono text-xs">{placeOf(row)}</span>,
            },
          ]
        : []),
      {
        id: "key",
        wide: true,
        head: "Key",
        width: "9rem",
        cell: (row) => <span className="font-mono text-xs">{row.key ?? ""}</span>,
      },
      {
        id: "size",
        wide: true,
        head: "Size",
        width: "5.5rem",
        right: true,
        cell: (row) => bytes(row.payload.size),
      },
      {
        id: "payload",
        head: "Payload",
        width: "minmax(9rem,1fr)",
        cell: (row) => {
          const shown = shownPayload(row.payload, decoder);
          return shown ? (
            <span className="font-mono text-xs">{shown.summary}</span>
          ) : (
            <span className="inline-flex items-center gap-1 text-faint text-xs">
              <Lock aria-hidden className="size-3" /> withheld
            </span>
          );
        },
      },
      { id: "from", wide: true, head: "Node", width: "7rem", cell: (row) => row.node },
    ],
    [zone, decoder, placed],
  );
  return (
    <>
      <VirtualTable
        label="Messages"
        columns={columns}
        rows={messages}
        rowKey={keyOfMessage}
        onRow={setOpen}
        empty={empty}
      />
      {open && <MessageDialog message={open} decoder={decoder} onClose={() => setOpen(null)} />}
    </>
  );
}

/** To what is stored around it. */
function BrowseFrom({ message, onClose }: { message: MessageView; onClose: () => void }) {
  const navigate = useNavigate();
  const from = message.token != null ? ("token" as const) : ("time" as const);
  const at = from === "token" ? placeOf(message) : toDate(message.at)?.toISOString();
  return (
    <Button
      onClick={() => {
        onClose();
        navigate({ to: "/messages", search: { topic: message.topic, view: "browse", from, at } });
      }}
    >
      Browse from here
    </Button>
  );
}

function MessageDialog({
  message,
  decoder: initial,
  onClose,
}: {
  message: MessageView;
  decoder: Wanted;
  onClose: () => void;
}) {
  const zone = useZone();
  const [decoder, setDecoder] = useState<Wanted>(initial);
  const shown = shownPayload(message.payload, decoder);
  const headers = Object.entries(message.headers ?? {});
  return (
    <Dialog
      open
      onOpenChange={(next) => !next && onClose()}
      shape="sheet"
      title={placeOf(message) === NONE ? "Message" : `Message ${placeOf(message)}`}
      lead={message.topic}
      footer={message.at ? <BrowseFrom message={message} onClose={onClose} /> : undefined}
    >
      <div className="flex flex-col gap-4 pb-5">
        <Facts
          items={[
            ["Time", dateTime(message.at, zone, "millis")],
            [
              "Key",
              message.key == null ? (
                "none"
              ) : (
                <code key="k" className="font-mono text-xs">
                  {message.key}
                </code>
              ),
            ],
            ["Session", message.session],
            ["Node", message.node],
            ["Size", bytes(message.payload.size)],
            ...headers.map(
              ([name, value]) =>
                [
                  <code key={name} className="font-mono text-xs">
                    {name}
                  </code>,
                  String(value),
                ] as [React.ReactNode, string],
            ),
          ]}
        />
        {shown ? (
          <>
            <div className="flex flex-wrap items-center gap-2">
              <Segments
                label="Decoder"
                value={decoder}
                onChange={setDecoder}
                options={DECODER_CHOICES}
              />
              {decoder === "auto" && <Badge tone="accent">read as {NAMES[shown.decoder]}</Badge>}
              {shown.shown < shown.size && (
                <Badge tone="warn">
                  first {bytes(shown.shown)} of {bytes(shown.size)}
                </Badge>
              )}
            </div>
            {shown.failed.length > 0 && decoder !== "auto" && (
              <p className="text-warn text-xs">
                {shown.failed.map((one) => `Not ${NAMES[one.decoder]}: ${one.reason}.`).join(" ")}{" "}
                Shown as {NAMES[shown.decoder]}.
              </p>
            )}
            <Code text={shown.text} label="Payload" className="[&_section]:max-h-[60vh]" />
          </>
        ) : (
          <p className="flex items-center gap-2 rounded-md bg-raised px-3 py-2 text-muted text-sm">
            <Lock aria-hidden className="size-4" /> You may see this topic, but not its payloads:
            that needs the right read_payloads.
          </p>
        )}
      </div>
    </Dialog>
  );
}
