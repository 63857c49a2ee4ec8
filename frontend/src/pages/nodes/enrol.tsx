import { useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { Command } from "@/ui/code";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Failed } from "@/ui/states";
import { Switch } from "@/ui/switch";

/** A token that lets an engine register, shown once, with the commands to use it. */
export function Enrol({ onClose }: { onClose: () => void }) {
  const { busy, act, error } = useAct("here");
  const [name, setName] = useState("new-node");
  const [node, setNode] = useState("");
  const [replace, setReplace] = useState(false);
  const [token, setToken] = useState<string | null>(null);
  const body = wanted<Schemas["EnrolmentInput"]>({
    name,
    uses_max: 1,
    expires_s: 86_400,
    ...(node ? { node, replace } : {}),
  });
  const make = async () => {
    const made = await act(() => http.POST("/api/v1/enrolments", { body }).then(bodyOf));
    if (made && "token" in made) setToken(made.token);
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Add a node"
      lead="An engine registers with a token that works once, within a day."
      footer={
        token ? (
          <Button look="primary" onClick={onClose}>
            Done
          </Button>
        ) : (
          <>
            <span className="mr-auto">
              <CopyAs action={{ method: "POST", path: "/api/v1/enrolments", body }} />
            </span>
            <Button look="primary" busy={busy} onClick={make} disabled={!name}>
              Create a token
            </Button>
          </>
        )
      }
    >
      {token ? (
        <div className="flex flex-col gap-2 pb-2">
          <p className="text-sm">Run this on the other host. The token is shown only now.</p>
          <Command text={`export TIDECAST_ENROL_TOKEN=${token}`} />
          <Command text={`tidecast engine --control ${location.origin}`} />
        </div>
      ) : (
        <div className="flex flex-col gap-2">
          <TextField label="Name of the token" autoFocus value={name} onChange={setName} />
          <TextField
            label="Node"
            hint="The only node that may use the token. Empty: any new node"
            mono
            value={node}
            onChange={setNode}
          />
          <Switch
            label="Replace an engine that registered as this node before"
            checked={replace && node !== ""}
            disabled={node === ""}
            onChange={setReplace}
          />
          {error !== null && <Failed error={error} />}
        </div>
      )}
    </Dialog>
  );
}
