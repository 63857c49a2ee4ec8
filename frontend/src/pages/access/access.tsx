import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { KeyRound, Plus, UserPlus, Users } from "lucide-react";
import { useState } from "react";
import { http } from "@/api/client";
import { type Key, keysQuery, type User, usersQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useIdentity, useMay } from "@/app/session";
import { ago, dateTime, useZone } from "@/lib/time";
import { useLive } from "@/live/store";
import { Badge, type Tone } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Confirm } from "@/ui/confirm";
import { More } from "@/ui/more";
import { Page } from "@/ui/page";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { TabPanel, Tabs } from "@/ui/tabs";
import { KeyEditor } from "./key-editor";
import { OtherRefusals, Refusals } from "./refusals";
import { UserEditor } from "./user-editor";

const route = getRouteApi("/app/access");
const ROLES: Record<string, Tone> = { admin: "accent", operator: "info", viewer: "plain" };

export function AccessPage() {
  const { tab = "keys", edit, create } = route.useSearch();
  const navigate = useNavigate();
  const may = useMay();
  const keys = useInfiniteQuery(keysQuery);
  const users = useInfiniteQuery(usersQuery);
  const open = (next: { edit?: string; create?: true }) =>
    navigate({ to: "/access", search: { tab, ...next }, replace: true });
  const close = () => open({});
  return (
    <Page
      title="Keys & users"
      lead="Users sign in; applications use API keys, limited to their topic permissions."
      actions={
        tab === "keys"
          ? may("keys:write") && (
              <Button look="primary" icon={Plus} onClick={() => open({ create: true })}>
                Create key
              </Button>
            )
          : may("users:write") && (
              <Button look="primary" icon={UserPlus} onClick={() => open({ create: true })}>
                Add user
              </Button>
            )
      }
    >
      <Tabs
        value={tab}
        onChange={(next) => navigate({ to: "/access", search: { tab: next }, replace: true })}
        tabs={[
          { value: "keys", label: "API keys", count: keys.data?.pages[0]?.total ?? undefined },
          { value: "users", label: "Users", count: users.data?.pages[0]?.total ?? undefined },
        ]}
      >
        <TabPanel value="keys">
          {keys.isError ? (
            <Failed error={keys.error} retry={keys.refetch} />
          ) : keys.isPending ? (
            <Loading />
          ) : (
            <>
              <Keys
                keys={keys.data.pages.flatMap((page) => page.items) as Key[]}
                all={!keys.hasNextPage}
                onCreate={() => open({ create: true })}
              />
              {keys.hasNextPage && (
                <p className="mt-2 text-center">
                  <More list={keys} />
                </p>
              )}
            </>
          )}
        </TabPanel>
        <TabPanel value="users">
          {users.isError ? (
            <Failed error={users.error} retry={users.refetch} />
          ) : users.isPending ? (
            <Loading />
          ) : (
            <>
              <UserTable
                users={users.data.pages.flatMap((page) => page.items) as User[]}
                onUser={may("users:write") ? ({ name }) => open({ edit: name }) : undefined}
              />
              {users.hasNextPage && (
                <p className="mt-2 text-center">
                  <More list={users} />
                </p>
              )}
            </>
          )}
        </TabPanel>
      </Tabs>
      {create && tab === "keys" && may("keys:write") && <KeyEditor onClose={close} />}
      {(create || edit) && tab === "users" && may("users:write") && (
        <UserEditor {...(edit ? { name: edit } : {})} onClose={close} />
      )}
    </Page>
  );
}

function Keys({
  keys,
  all,
  onCreate,
}: {
  keys: Key[];
  /** No key is left to be loaded. */
  all: boolean;
  onCreate: () => void;
}) {
  const live = useLive("keys");
  const refused = live?.keys ?? {};
  const names = new Set(keys.map((one) => one.name));
  const zone = useZone();
  const may = useMay()("keys:write");
  const { act } = useAct();
  const [asked, setAsked] = useState<Key | null>(null);
  const now = Date.now();
  const columns: Column<Key>[] = [
    {
      id: "name",
      head: "Key",
      cell: (row) => (
        <span>
          <b className="font-medium">{row.name}</b>
          <span className="ml-2 font-mono text-faint text-xs">{row.prefix}…</span>
          {row.description && <span className="block text-muted text-xs">{row.description}</span>}
        </span>
      ),
    },
    {
      id: "role",
      head: "Role",
      cell: (row) => <Badge tone={ROLES[row.role] ?? "plain"}>{row.role}</Badge>,
    },
    {
      id: "scopes",
      head: "Topic permissions",
      cell: (row) =>
        row.scopes.length === 0 ? (
          <span className="text-faint text-xs">none</span>
        ) : (
          <span className="flex flex-wrap gap-1">
            {row.scopes.map((scope) => (
              <Badge key={scope.pattern}>
                <code className="font-mono">{scope.pattern}</code>{" "}
                {scope.rights.join(", ").replaceAll("_", " ")}
              </Badge>
            ))}
          </span>
        ),
    },
    {
      id: "state",
      head: "State",
      cell: (row) =>
        row.revoked_at ? (
          <Badge tone="bad">revoked</Badge>
        ) : row.expires_at && Date.parse(row.expires_at) < now ? (
          <Badge tone="warn">expired</Badge>
        ) : (
          <Badge tone="good">valid</Badge>
        ),
    },
    {
      id: "refused",
      head: <span title="Since the engines started">Refused requests</span>,
      cell: (row) =>
        live && live.measured !== false ? (
          <Refusals live={refused[row.name]} />
        ) : (
          <span className="text-faint text-xs">not measured</span>
        ),
    },
    {
      id: "expires",
      wide: true,
      head: "Expires",
      cell: (row) => (row.expires_at ? ago(row.expires_at, now) : "never"),
    },
    {
      id: "used",
      wide: true,
      head: "Last used",
      cell: (row) => (row.used_at ? ago(row.used_at, now) : "never"),
    },
    {
      id: "created",
      wide: true,
      head: "Created",
      cell: (row) => (
        <span className="num text-muted text-xs">
          {dateTime(row.created_at, zone)} by {row.created_by}
        </span>
      ),
    },
    {
      id: "act",
      head: <span className="sr-only">Actions</span>,
      right: true,
      cell: (row) =>
        may &&
        !row.revoked_at && (
          <Button size="sm" look="quiet" onClick={() => setAsked(row)}>
            Revoke
          </Button>
        ),
    },
  ];
  return (
    <Card flush label="API keys">
      <Table
        label="API keys"
        columns={columns}
        rows={keys}
        rowKey={(row) => row.id}
        empty={
          <Empty
            icon={KeyRound}
            title="No keys yet"
            commands={[
              "export TIDECAST_KEY=tc_…",
              `curl -H "Authorization: Bearer $TIDECAST_KEY" ${location.origin}/api/v1/topics`,
            ]}
            action={
              may && (
                <Button look="primary" icon={Plus} onClick={onCreate}>
                  Create key
                </Button>
              )
            }
          >
            Applications authenticate with a key. Its secret is shown once and stored only as a
            hash.
          </Empty>
        }
      />
      {all && <OtherRefusals rows={Object.values(refused).filter((one) => !names.has(one.name))} />}
      <Confirm
        open={asked !== null}
        onOpenChange={(open) => !open && setAsked(null)}
        title={`Revoke ${asked?.name}?`}
        lead="Applications that use it are refused from now on."
        word={asked?.name ?? ""}
        verb="Revoke"
        action={{ method: "DELETE", path: `/api/v1/keys/${asked?.name ?? ""}` }}
        run={() =>
          act(
            () =>
              http.DELETE("/api/v1/keys/{name}", { params: { path: { name: asked?.name ?? "" } } }),
            `${asked?.name} is revoked`,
          )
        }
      />
    </Card>
  );
}

function UserTable({
  users,
  onUser,
}: {
  users: User[];
  onUser: ((user: User) => void) | undefined;
}) {
  const now = Date.now();
  const me = useIdentity()?.name;
  const columns: Column<User>[] = [
    {
      id: "name",
      head: "User",
      cell: (row) => (
        <span>
          <b className="font-medium">{row.name}</b>
          {row.name === me && <span className="ml-1.5 text-faint text-xs">you</span>}
          {row.display_name && <span className="block text-muted text-xs">{row.display_name}</span>}
        </span>
      ),
    },
    {
      id: "role",
      head: "Role",
      cell: (row) => <Badge tone={ROLES[row.role] ?? "plain"}>{row.role}</Badge>,
    },
    {
      id: "state",
      head: "State",
      cell: (row) =>
        row.disabled ? (
          <Badge tone="bad">disabled</Badge>
        ) : row.must_change_password ? (
          <Badge tone="warn">must change password</Badge>
        ) : (
          <Badge tone="good">active</Badge>
        ),
    },
    {
      id: "login",
      wide: true,
      head: "Last signed in",
      cell: (row) => (row.login_at ? ago(row.login_at, now) : "never"),
    },
    {
      id: "act",
      head: <span className="sr-only">Actions</span>,
      right: true,
      cell: (row) =>
        onUser && (
          <Button size="sm" onClick={() => onUser(row)} aria-label={`Edit ${row.name}`}>
            Edit
          </Button>
        ),
    },
  ];
  return (
    <Card flush label="Users">
      <Table
        label="Users"
        columns={columns}
        rows={users}
        rowKey={(row) => row.name}
        empty={<Empty icon={Users} title="No users" />}
      />
    </Card>
  );
}
