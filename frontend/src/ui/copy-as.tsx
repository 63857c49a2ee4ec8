import { Braces, CodeXml, SquareTerminal, Terminal } from "lucide-react";
import { toast } from "sonner";
import { type Action, asCurl, asPython } from "@/lib/copy-as";
import { Button, IconButton } from "./button";
import { copyText } from "./code";
import { Menu, MenuItem, MenuLabel } from "./menu";

/** Copies what an action does as curl, as a command, or as Python. */
export function CopyAs({ action, small }: { action: Action; small?: boolean }) {
  const copy = async (what: string, text: string) => {
    if (await copyText(text)) toast.success(`Copied as ${what}`);
    else toast.error("This browser does not let the page copy.");
  };
  const trigger = small ? (
    <IconButton icon={CodeXml} label="Copy as" />
  ) : (
    <Button icon={CodeXml} size="sm" look="quiet">
      Copy as
    </Button>
  );
  return (
    <Menu trigger={trigger}>
      <MenuLabel>Do the same elsewhere</MenuLabel>
      <MenuItem icon={Terminal} onSelect={() => copy("curl", asCurl(action, location.origin))}>
        curl
      </MenuItem>
      {action.cli && (
        <MenuItem icon={SquareTerminal} onSelect={() => copy("a command", action.cli ?? "")}>
          tidecast
        </MenuItem>
      )}
      <MenuItem icon={Braces} onSelect={() => copy("Python", asPython(action, location.origin))}>
        Python
      </MenuItem>
    </Menu>
  );
}
