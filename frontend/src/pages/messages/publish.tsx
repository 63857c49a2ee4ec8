import { Send } from "lucide-react";
import { useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { refusalOf } from "@/forms/fields-view";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { Field, TextArea, TextField } from "@/ui/field";
import { Segments } from "@/ui/segments";
import { SelectField } from "@/ui/select";
import { Failed } from "@/ui/states";
import { TimeField } from "@/ui/time-field";

import { parseHeaders, payloadError, type Shape } from "./publish-body";

type Ack = Schemas["PublishInput"]["ack"];

export function Publish({ topic }: { topic: string }) {
  const { busy, act, error } = useAct("here");
  const tidecast = useTidecast();
  const [shape, setShape] = useState<Shape>("json");
  const [payload, setPayload] = useState('{\n  "hello": "tide"\n}');
  const [key, setKey] = useState("");
  const [headers, setHeaders] = useState("");
  const [ack, setAck] = useState<Ack>("engine");
  const [due, setDue] = useState("");
  const [sent, setSent] = useState<Schemas["Published"] | null>(null);
  const wrong = payloadError(shape, payload);
  const parsed = parseHeaders(headers);
  const body = wanted<Schemas["PublishInput"]>({
    // JSON goes as it was typed: read into numbers, those of 64 bits would be rounded.
    ...(shape === "hex" ? { hex: payload.replace(/\s/g, "") } : { text: payload }),
    ...(key ? { key } : {}),
    headers: parsed ?? {},
    ack,
    ...(due ? { deliver_at: due } : {}),
  });
  const path = `/api/v1/topics/${encodeURIComponent(topic)}/messages`;
  const ready = !wrong && parsed !== null;
  const publish = async () => {
    const answer = await act(
      () =>
        http
          .POST("/api/v1/topics/{name}/messages", { params: { path: { name: topic } }, body })
          .then(bodyOf),
      `Published to ${topic}`,
    );
    if (answer) setSent(answer as Schemas["Published"]);
  };
  return (
    <Card label="Publish a message" className="mx-auto max-w-3xl">
      <form
        className="flex flex-col gap-3 pt-2"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) publish();
        }}
      >
        <div className="flex items-center gap-2">
          <Segments
            label="Payload as"
            value={shape}
            onChange={setShape}
            options={[
              { value: "json", label: "JSON" },
              { value: "text", label: "Text" },
              { value: "hex", label: "Hex" },
            ]}
          />
          <span className="ml-auto">
            <CopyAs
              action={{
                method: "POST",
                path,
                body,
                cli:
                  shape === "hex"
                    ? undefined
                    : tidecast(
                        ...["pub", topic, "--message", payload],
                        ...(key ? ["--key", key] : []),
                        ...Object.entries(parsed ?? {}).flatMap(([name, value]) => [
                          "--header",
                          `${name}=${value}`,
                        ]),
                        ...(due ? ["--deliver-at", due] : []),
                      ),
              }}
            />
          </span>
        </div>
        <Field label="Payload" error={wrong}>
          {(field) => (
            <TextArea
              {...field}
              rows={9}
              value={payload}
              onChange={(event) => setPayload(event.target.value)}
            />
          )}
        </Field>
        <div className="grid gap-3 sm:grid-cols-2">
          <TextField
            label="Key"
            hint="Messages of one key keep their order"
            mono
            value={key}
            onChange={setKey}
          />
          <SelectField
            label="Acknowledge when"
            value={ack}
            onChange={setAck}
            options={[
              { value: "none", label: "Sent to the engine" },
              { value: "engine", label: "The engine accepted it" },
              { value: "durable", label: "Stored on disk", hint: "Durable topics" },
            ]}
          />
          <TimeField
            label="Deliver at"
            value={due}
            onChange={setDue}
            ahead
            hint="Empty: at once. Durable topics, at most 365 days ahead"
            error={refusalOf(error, "deliver_at")}
          />
          <Field
            label="Headers"
            hint="name: value, one a line"
            error={parsed ? undefined : "name: value, one a line"}
            className="col-span-full"
          >
            {(field) => (
              <TextArea
                {...field}
                rows={2}
                value={headers}
                onChange={(event) => setHeaders(event.target.value)}
              />
            )}
          </Field>
        </div>
        {error !== null && <Failed error={error} />}
        <div className="flex items-center gap-3">
          <Button type="submit" look="primary" icon={Send} busy={busy} disabled={!ready}>
            Publish
          </Button>
          {sent && (
            <span role="status" className="num text-muted text-sm">
              Published by {sent.node}
              {sent.token != null && ` as ${sent.queue ?? 0}:${sent.token}`}.
            </span>
          )}
        </div>
      </form>
    </Card>
  );
}
