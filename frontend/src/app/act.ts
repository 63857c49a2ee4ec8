import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { toast } from "@/ui/toast";

/** Does something once, says how it went, and reads anew what it may have changed. */
export function useAct(): {
  busy: boolean;
  act: <T>(run: () => Promise<T>, done?: string) => Promise<T | undefined>;
} {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const act = async <T>(run: () => Promise<T>, done?: string) => {
    setBusy(true);
    try {
      const result = await run();
      if (done) toast.success(done);
      client.invalidateQueries();
      return result;
    } catch (error) {
      toast.error(error instanceof Error ? error.message : String(error));
      return undefined;
    } finally {
      setBusy(false);
    }
  };
  return { busy, act };
}
