import type { UseQueryResult } from "@tanstack/react-query";
import { type LucideIcon, Pencil, Plus } from "lucide-react";
import type { ComponentProps, ReactNode } from "react";
import { Button } from "./button";
import { Card } from "./card";
import { CopyAs } from "./copy-as";
import { Page } from "./page";
import { Empty, Failed, Loading } from "./states";
import { type Column, Table } from "./table";

interface Named {
  metadata: { name: string };
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
  rows: T[];
  columns: Column<T>[];
  /** Opens the form; without it the session may not create resources. */
  onCreate?: () => void;
  onChoose: (name: string) => void;
  /** Above the list. */
  notice?: ReactNode;
  /** Below the list, once it is here. */
  children?: ReactNode;
}

/** A page of resources that run: their table, a button for a new one, and the chosen one below. */
export function ResourceList<T extends Named>(props: Props<T>) {
  const { title, noun, list, rows } = props;
  const create = props.onCreate && (
    <Button look="primary" icon={Plus} onClick={props.onCreate}>
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
                columns={props.columns}
                rows={rows}
                rowKey={(row) => row.metadata.name}
                onRow={(row) => props.onChoose(row.metadata.name)}
              />
            )}
          </Card>
          {props.children}
        </div>
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

/** The actions of a row: its own, edit, and the same as a command. */
export function RowActions({
  name,
  verb,
  onEdit,
  copy,
  ...button
}: {
  name: string;
  verb: string;
  onEdit: () => void;
  copy: ComponentProps<typeof CopyAs>["action"];
} & Pick<ComponentProps<typeof Button>, "icon" | "busy" | "disabled" | "title" | "onClick">) {
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it only keeps its buttons' clicks from the row
    // biome-ignore lint/a11y/useKeyWithClickEvents: it only keeps its buttons' clicks from the row
    <span
      className="flex items-center justify-end gap-1"
      onClick={(event) => event.stopPropagation()}
    >
      <Button size="sm" aria-label={`${verb} ${name}`} {...button}>
        {verb}
      </Button>
      <Button size="sm" look="quiet" icon={Pencil} aria-label={`Edit ${name}`} onClick={onEdit}>
        Edit
      </Button>
      <CopyAs small action={copy} />
    </span>
  );
}
