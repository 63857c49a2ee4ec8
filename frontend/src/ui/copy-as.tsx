import { Braces, CodeXml, SquareTerminal, Terminal } from "lucide-react";
import { type Action, asCommand, asCurl, asPython } from "@/lib/copy-as";
import { toast } from "@/ui/toast";
import { Button, IconButton } from "./button";
import { copyText } from "./code";
import { Menu, MenuItem, MenuLabel } from "./menu";

const WAYS = [
  ["curl", Terminal, asCurl],
  ["tidecast", SquareTerminal, asCommand],
  ["Python", Braces, asPython],
] as const;

/** Copies what an action does as curl, as a command or as Python. */
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
      <MenuLabel>Do the same from a script</MenuLabel>
      {WAYS.map(([name, icon, written]) => (
        <MenuItem
          key={name}
          icon={icon}
          onSelect={() => copy(name, written(action, location.origin))}
        >
          {name}
        </MenuItem>
      ))}
    </Menu>
  );
}
