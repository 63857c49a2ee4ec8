import { useNavigate } from "@tanstack/react-router";
import { Command } from "cmdk";
import type { LucideIcon } from "lucide-react";
import { Dialog } from "radix-ui";
import { type ReactNode, useState } from "react";
import { Keys } from "@/ui/keys";
import type { Place } from "./nav";

export interface Doing {
  id: string;
  name: string;
  icon: LucideIcon;
  run: () => void;
  keys?: string;
  words?: string[];
}

export interface Found {
  kind: string;
  name: string;
  icon: LucideIcon;
  open: () => void;
}

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  doings: readonly Doing[];
  /** Looks names up at the service: lists of thousands are not held here. */
  find: (query: string) => readonly Found[];
  places: readonly Place[];
}

const ITEM =
  "flex h-9 cursor-pointer items-center gap-2.5 rounded-md px-2.5 text-sm data-[selected=true]:bg-hover";
const GROUP =
  "[&_[cmdk-group-heading]]:px-2.5 [&_[cmdk-group-heading]]:pt-2 [&_[cmdk-group-heading]]:pb-1 [&_[cmdk-group-heading]]:text-2xs [&_[cmdk-group-heading]]:font-medium [&_[cmdk-group-heading]]:text-faint";

/** Every word that was typed is a part of the name, or of what it is about. */
const contains = (value: string, search: string, words?: string[]): number => {
  const text = [value, ...(words ?? [])].join(" ").toLowerCase();
  return search
    .toLowerCase()
    .trim()
    .split(/\s+/)
    .every((one) => text.includes(one))
    ? 1
    : 0;
};

/** Everything by keyboard: places, things by name, and what can be done. */
export function Palette({ open, onOpenChange, doings, find, places }: Props) {
  const [query, setQuery] = useState("");
  const navigate = useNavigate();
  const close = (open: boolean) => {
    onOpenChange(open);
    if (!open) setQuery("");
  };
  const go = (to: string) => {
    close(false);
    navigate({ to });
  };
  const found = open && query.trim() ? find(query.trim()) : [];
  return (
    <Dialog.Root open={open} onOpenChange={close}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-50 bg-black/45" />
        <Dialog.Content
          aria-describedby={undefined}
          className="-translate-x-1/2 fixed top-[14vh] left-1/2 z-50 w-[calc(100vw-2rem)] max-w-xl animate-in overflow-hidden rounded-xl border bg-panel shadow-pop"
        >
          <Dialog.Title className="sr-only">Find or do anything</Dialog.Title>
          <Command label="Find or do anything" loop filter={contains}>
            <Command.Input
              value={query}
              onValueChange={setQuery}
              placeholder="A topic, a page, an action …"
              className="h-12 w-full border-b bg-transparent px-4 text-base placeholder:text-faint focus:outline-none"
            />
            <Command.List className="max-h-[52vh] overflow-y-auto p-1.5">
              <Command.Empty className="py-8 text-center text-muted text-sm">
                No topic, subscription, policy, rule, pipeline, user, key, page or action matches “
                {query}”.
              </Command.Empty>
              {found.length > 0 && (
                <Command.Group heading="By name" className={GROUP}>
                  {found.map((one) => (
                    <Item
                      key={one.kind + one.name}
                      value={`${one.kind} ${one.name}`}
                      icon={one.icon}
                      onSelect={() => {
                        close(false);
                        one.open();
                      }}
                    >
                      <span className="truncate font-mono text-xs">{one.name}</span>
                      <span className="ml-auto text-faint text-xs">{one.kind}</span>
                    </Item>
                  ))}
                </Command.Group>
              )}
              <Command.Group heading="Do" className={GROUP}>
                {doings.map((doing) => (
                  <Item
                    key={doing.id}
                    value={doing.name}
                    keywords={doing.words ?? []}
                    icon={doing.icon}
                    onSelect={() => {
                      close(false);
                      doing.run();
                    }}
                  >
                    {doing.name}
                    {doing.keys && (
                      <span className="ml-auto">
                        <Keys keys={doing.keys} />
                      </span>
                    )}
                  </Item>
                ))}
              </Command.Group>
              <Command.Group heading="Go to" className={GROUP}>
                {places.map((place) => (
                  <Item
                    key={place.path}
                    value={`Go to ${place.name}`}
                    keywords={[place.says]}
                    icon={place.icon}
                    onSelect={() => go(place.path)}
                  >
                    {place.name}
                    <span className="truncate text-faint text-xs">{place.says}</span>
                    <span className="ml-auto">
                      <Keys keys={`g ${place.key}`} />
                    </span>
                  </Item>
                ))}
              </Command.Group>
            </Command.List>
          </Command>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

function Item({
  icon: Icon,
  children,
  ...props
}: {
  icon: LucideIcon;
  children: ReactNode;
  value: string;
  keywords?: string[];
  onSelect: () => void;
}) {
  return (
    <Command.Item {...props} className={ITEM}>
      <Icon aria-hidden className="size-4 shrink-0 text-muted" />
      {children}
    </Command.Item>
  );
}
