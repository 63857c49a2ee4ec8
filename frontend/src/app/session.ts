import { useQuery } from "@tanstack/react-query";
import { ApiError, bodyOf, http, setCsrfToken } from "@/api/client";
import { type Identity, identityQuery } from "@/api/queries";
import { queries } from "./query-client";

/** Who is signed in; null when nobody is. Other failures are thrown. */
export async function whoIsThere(): Promise<Identity | null> {
  try {
    const identity = await queries.ensureQueryData(identityQuery);
    setCsrfToken(identity.csrf_token);
    return identity;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return null;
    throw error;
  }
}

export async function signIn(user: string, password: string): Promise<Identity> {
  const identity = await http.POST("/api/v1/auth/login", { body: { user, password } }).then(bodyOf);
  setCsrfToken(identity.csrf_token);
  queries.setQueryData(identityQuery.queryKey, identity);
  return identity;
}

export async function signOut(): Promise<void> {
  await http.POST("/api/v1/auth/logout").catch(() => undefined);
  setCsrfToken(null);
  queries.clear();
}

export function useIdentity(): Identity | undefined {
  return useQuery(identityQuery).data;
}

/** What the page offers; the service decides. */
export function useMay(): (right: string) => boolean {
  const rights = useIdentity()?.rights ?? [];
  return (right) => rights.includes(right) || rights.includes("*");
}
