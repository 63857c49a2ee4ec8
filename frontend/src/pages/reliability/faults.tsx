import { useQuery } from "@tanstack/react-query";
import { FlaskConical } from "lucide-react";
import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import { faultsQuery, systemQuery, transportsQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useMay } from "@/app/session";
import { exact, percent } from "@/lib/format";
import { ActionButton } from "@/ui/action-button";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Command } from "@/ui/code";
import { CopyAs } from "@/ui/copy-as";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";

/** Loss on purpose, to see repairs at work: guarded, seeded, and it switches itself off. */
export function Faults({ injected }: { injected: Readonly<Record<string, string>> }) {
  const system = useQuery(systemQuery).data;
  const faults = useQuery(faultsQuery).data?.items ?? [];
  const transports = useQuery(transportsQuery).data?.items ?? [];
  const may = useMay();
  const { busy, act } = useAct();
  const open = transports.filter((one) => one.spec.allow_faults);
  const [chosen, setChosen] = useState("");
  const [drop, setDrop] = useState("1");
  const transport = chosen || open[0]?.metadata.name || "";
  const active = faults.filter((one) => one.status.active);
  const share = Number(drop) / 100;
  const valid = Number.isFinite(share) && share > 0 && share <= 1;
  const body = { spec: { drop: share, seed: 7, expires_s: 300 } };
  const path = `/api/v1/faults/${encodeURIComponent(transport)}`;
  const counts = Object.entries(injected).filter(([, count]) => count !== "0");

  return (
    <Card
      title="Fault injection"
      actions={
        active.length > 0 ? (
          <Badge tone="warn" icon={FlaskConical}>
            active
          </Badge>
        ) : (
          <Badge>off</Badge>
        )
      }
    >
      <div className="flex flex-col gap-3">
        {active.map((fault) => (
          <div
            key={fault.metadata.name}
            className="flex items-center gap-2 rounded-md bg-warn-soft px-2.5 py-1.5 text-sm"
          >
            <span className="min-w-0 flex-1">
              <b className="font-medium">{fault.metadata.name}</b> drops{" "}
              {percent(fault.spec.drop ?? 0)}
            </span>
            <ActionButton
              run={() =>
                http.DELETE("/api/v1/faults/{name}", {
                  params: { path: { name: fault.metadata.name } },
                })
              }
              done="Faults are off"
              copy={{ method: "DELETE", path: `/api/v1/faults/${fault.metadata.name}` }}
            >
              Stop
            </ActionButton>
          </div>
        ))}
        {!system?.faults_allowed ? (
          <>
            <p className="text-muted text-sm">
              To see repairs at work, lose packets on purpose. This service does not allow faults.
              Start it with
            </p>
            <Command text="TIDECAST_CONTROL_ALLOW_FAULTS=true tidecast up" />
          </>
        ) : open.length === 0 ? (
          <Allow
            transports={transports.map((one) => one.metadata.name)}
            may={may("transports:write")}
          />
        ) : (
          <form
            className="grid grid-cols-[1fr_6rem] gap-2"
            onSubmit={(event) => {
              event.preventDefault();
              if (!valid) return;
              act(
                () =>
                  http.PUT("/api/v1/faults/{name}", {
                    params: { path: { name: transport } },
                    body: wanted<Schemas["FaultInput"]>(body),
                  }),
                `${transport} now drops ${percent(share)}`,
              );
            }}
          >
            <SelectField
              label="Transport"
              value={transport}
              onChange={setChosen}
              options={open.map((one) => ({
                value: one.metadata.name,
                label: one.metadata.name,
              }))}
            />
            <TextField
              label="Drop, %"
              error={valid ? undefined : "0 to 100"}
              inputMode="decimal"
              value={drop}
              onChange={setDrop}
            />
            <div className="col-span-full flex items-center gap-2">
              <Button
                type="submit"
                size="sm"
                icon={FlaskConical}
                busy={busy}
                disabled={!valid || !may("faults:write")}
              >
                Inject loss for five minutes
              </Button>
              <CopyAs small action={{ method: "PUT", path, body }} />
            </div>
          </form>
        )}
        {counts.length > 0 && (
          <p className="num text-faint text-xs">
            {counts
              .map(([fault, count]) => `${exact(count)} ${fault.replaceAll("_", " ")}`)
              .join(" · ")}
          </p>
        )}
      </div>
    </Card>
  );
}

interface AllowProps {
  transports: readonly string[];
  may: boolean;
}

/** The second of two locks: each transport has one of its own. */
function Allow({ transports, may }: AllowProps) {
  const [chosen, setChosen] = useState("");
  const name = chosen || transports.find((one) => one !== "ipc") || transports[0] || "";
  const body = { spec: { allow_faults: true } };
  return (
    <div className="flex flex-col gap-2">
      <p className="text-muted text-sm">
        The service allows faults, but no transport allows them yet. Allowing them loses no packets.
      </p>
      <SelectField
        label="Transport"
        value={name}
        onChange={setChosen}
        options={transports.map((one) => ({ value: one, label: one }))}
      />
      <div className="flex items-center gap-2">
        <ActionButton
          disabled={!may || !name}
          run={() =>
            http.PATCH("/api/v1/transports/{name}", {
              params: { path: { name } },
              body: wanted<Schemas["MergePatch"]>(body),
            })
          }
          done={`Faults may be injected on ${name}`}
          copy={{ method: "PATCH", path: `/api/v1/transports/${encodeURIComponent(name)}`, body }}
        >
          Allow faults
        </ActionButton>
      </div>
    </div>
  );
}
