import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { toast } from "@/ui/toast";

interface Act {
  busy: boolean;
  /** Why the last one failed, where the caller shows that itself. */
  error: unknown;
  act: <T>(run: () => Promise<T>, done?: string) => Promise<T | undefined>;
}

/**
 * Does something once, says how it went, and reads again what it may have changed. In a dialog the
 * caller shows `error` there: a toast in the corner would be far from where it happened.
 */
export function useAct(shows: "toast" | "here" = "toast"): Act {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const act = async <T>(run: () => Promise<T>, done?: string) => {
    setBusy(true);
    setError(null);
    try {
      const result = await run();
      if (done) toast.success(done);
      client.invalidateQueries();
      return result;
    } catch (caught) {
      if (shows === "here") setError(caught);
      else toast.error(caught instanceof Error ? caught.message : String(caught));
      return undefined;
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, act };
}
