import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useRouter } from "@tanstack/react-router";
import { LogIn } from "lucide-react";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { ApiError, http } from "@/api/client";
import { identityQuery } from "@/api/queries";
import { queries } from "@/app/query-client";
import { signIn } from "@/app/session";
import { Mark } from "@/app/sidebar";
import { Button } from "@/ui/button";
import { TextField } from "@/ui/field";
import { Failed } from "@/ui/states";

const route = getRouteApi("/login");

export function LoginPage() {
  const { to } = route.useSearch();
  const router = useRouter();
  const identity = useQuery({ ...identityQuery, enabled: false }).data;
  const [password, setPassword] = useState("");
  useEffect(() => {
    document.title = "Sign in · Tidecast";
  }, []);
  const enter = () => router.history.push(to?.startsWith("/") && !to.startsWith("//") ? to : "/");
  return identity?.must_change_password ? (
    <NewPassword old={password} user={identity.name} done={enter} />
  ) : (
    <SignIn
      done={(first, secret) => {
        setPassword(secret);
        if (!first) enter();
      }}
    />
  );
}

function Frame({ title, lead, children }: { title: string; lead: ReactNode; children: ReactNode }) {
  return (
    <main className="flex min-h-full items-center justify-center bg-[radial-gradient(60rem_32rem_at_50%_-8rem,var(--accent-soft),transparent)] p-6">
      <div className="w-full max-w-sm">
        <Mark className="mb-5 w-11" />
        <h1 className="font-semibold text-xl tracking-[-0.02em]">{title}</h1>
        <p className="mt-1 mb-6 text-muted text-sm">{lead}</p>
        {children}
      </div>
    </main>
  );
}

function SignIn({ done }: { done: (mustChange: boolean, password: string) => void }) {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const identity = await signIn(user.trim(), password);
      done(identity.must_change_password ?? false, password);
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const wrong = error instanceof ApiError && error.status === 401;
  return (
    <Frame
      title="Sign in to Tidecast"
      lead="On the first run the user is admin; the service printed its password once when it started."
    >
      <form onSubmit={submit} className="flex flex-col gap-3.5">
        <TextField
          label="User"
          autoFocus
          autoComplete="username"
          required
          value={user}
          onChange={setUser}
        />
        <TextField
          label="Password"
          error={wrong ? "User or password is wrong." : undefined}
          type="password"
          autoComplete="current-password"
          required
          value={password}
          onChange={setPassword}
        />
        {error !== null && !wrong && <Failed error={error} />}
        <Button type="submit" look="primary" icon={LogIn} busy={busy} className="mt-1">
          Sign in
        </Button>
      </form>
    </Frame>
  );
}

const PASSWORD_CHARS_MIN = 10;

function NewPassword({ old, user, done }: { old: string; user: string; done: () => void }) {
  const [before, setBefore] = useState(old);
  const [fresh, setFresh] = useState("");
  const [again, setAgain] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const short = fresh.length > 0 && fresh.length < PASSWORD_CHARS_MIN;
  const differs = again.length > 0 && again !== fresh;
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (short || fresh !== again) return;
    setBusy(true);
    setError(null);
    try {
      await http.POST("/api/v1/auth/password", { body: { old: before, new: fresh } });
      await signIn(user, fresh);
      await queries.invalidateQueries();
      done();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Frame
      title="Choose a password"
      lead={`The first password of ${user} was printed to a terminal. Choose a password that only you know.`}
    >
      <form onSubmit={submit} className="flex flex-col gap-3.5">
        {!old && (
          <TextField
            label="Present password"
            type="password"
            autoComplete="current-password"
            required
            value={before}
            onChange={setBefore}
          />
        )}
        <TextField
          label="New password"
          hint="At least ten characters."
          error={short ? "At least ten characters." : undefined}
          autoFocus
          type="password"
          autoComplete="new-password"
          required
          minLength={PASSWORD_CHARS_MIN}
          value={fresh}
          onChange={setFresh}
        />
        <TextField
          label="Once more"
          error={differs ? "The passwords differ." : undefined}
          type="password"
          autoComplete="new-password"
          required
          value={again}
          onChange={setAgain}
        />
        {error !== null && <Failed error={error} />}
        <Button type="submit" look="primary" busy={busy} className="mt-1">
          Set the password
        </Button>
      </form>
    </Frame>
  );
}
