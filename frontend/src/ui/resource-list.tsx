import type { UseQueryResult } from "@tanstack/react-query";
import { type LucideIcon, Pencil, Plus } from "lucide-react";
import { type ComponentProps, type ComponentType, type ReactNode, useState } from "react";
import { ActionButton } from "./action-button";
import { Button } from "./button";
import { Card } from "./card";
import { Page } from "./page";
import { Empty, Failed, Loading } from "./states";
import { type Column, Table } from "./table";

interface Named {
  metadata: { name: string };
}

interface Search {
  /** The chosen resource. */
  name?: string | undefined;
  create?: true | undefined;
}

interface Props<T extends Named> {
  title: string;
  lead: string;
  /** One of the resources: mirror. */
  noun: string;
  icon: LucideIcon;
  /** What a resource is for, while there is none. */
  about: ReactNode;
  list: UseQueryResult<{ items: unknown[] }>;
  /** Their actions edit a row; without `onEdit` the session may not change resources. */
  columns: (onEdit: ((row: T) => void) | undefined) => Column<T>[];
  /** The session may create and change resources. */
  may: boolean;
  editor: ComponentType<{ name?: string; onClose: () => void; onSaved?: (name: string) => void }>;
  search: Search;
  onSearch: (search: Search) => void;
  /** Above the list. */
  notice?: ReactNode;
  /** Below the list, once it is here; the chosen resource first. */
  children?: (chosen: T | undefined) => ReactNode;
}

/** A page of resources that run: their table, the form of one, and the chosen one below. */
export function ResourceList<T extends Named>(props: Props<T>) {
  const { title, noun, list, may, search, onSearch, editor: Editor } = props;
  const [edited, setEdited] = useState<T | null>(null);
  const rows = (list.data?.items ?? []) as T[];
  const create = may && (
    <Button
      look="primary"
      icon={Plus}
      onClick={() => onSearch({ name: search.name, create: true })}
    >
      Create {noun}
    </Button>
  );
  return (
    <Page title={title} lead={props.lead} actions={create}>
      {props.notice}
      {list.isError && <Failed error={list.error} retry={list.refetch} />}
      {list.isPending && <Loading />}
      {list.data && (
        <div className="flex flex-col gap-3">
          <Card label={title} flush>
            {rows.length === 0 ? (
              <Empty icon={props.icon} title={`No ${noun} yet`} className="py-10" action={create}>
                {props.about}
              </Empty>
            ) : (
              <Table
                label={title}
                columns={props.columns(may ? setEdited : undefined)}
                rows={rows}
                rowKey={(row) => row.metadata.name}
                onRow={(row) => onSearch({ name: row.metadata.name })}
              />
            )}
          </Card>
          {props.children?.(rows.find((row) => row.metadata.name === search.name))}
        </div>
      )}
      {edited && <Editor name={edited.metadata.name} onClose={() => setEdited(null)} />}
      {may && search.create && (
        <Editor
          onClose={() => onSearch({ name: search.name })}
          onSaved={(name) => onSearch({ name })}
        />
      )}
    </Page>
  );
}

/** The columns that all such tables have: the name first, the last error and the actions last. */
export const nameColumn = <T extends Named>(head: string): Column<T> => ({
  id: "name",
  head,
  cell: (row) => <b className="font-medium">{row.metadata.name}</b>,
});

export const errorColumn = <T extends Named>(
  errorOf: (row: T) => string | undefined,
): Column<T> => ({
  id: "error",
  wide: true,
  head: "Error",
  width: "22%",
  cell: (row) => (
    <span className="line-clamp-2 text-bad text-xs" title={errorOf(row)}>
      {errorOf(row)}
    </span>
  ),
});

/** The actions of a row: its own, the same as a command, and edit. */
export function RowActions({
  name,
  verb,
  onEdit,
  ...action
}: {
  name: string;
  verb: string;
  onEdit: () => void;
} & ComponentProps<typeof ActionButton>) {
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it only keeps its buttons' clicks from the row
    // biome-ignore lint/a11y/useKeyWithClickEvents: it only keeps its buttons' clicks from the row
    <span
      className="flex items-center justify-end gap-1"
      onClick={(event) => event.stopPropagation()}
    >
      <ActionButton aria-label={`${verb} ${name}`} {...action}>
        {verb}
      </ActionButton>
      <Button size="sm" look="quiet" icon={Pencil} aria-label={`Edit ${name}`} onClick={onEdit}>
        Edit
      </Button>
    </span>
  );
}
